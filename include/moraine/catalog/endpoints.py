"""The routes of Iceberg's REST catalog API, written as a server advertises them."""

from __future__ import annotations

import re
from enum import StrEnum


class Endpoint(StrEnum):
    """A verb and a path; what is in braces differs from request to request."""

    GET_CONFIG = "GET /v1/config"
    LIST_NAMESPACES = "GET /v1/{prefix}/namespaces"
    CREATE_NAMESPACE = "POST /v1/{prefix}/namespaces"
    LOAD_NAMESPACE = "GET /v1/{prefix}/namespaces/{namespace}"
    DROP_NAMESPACE = "DELETE /v1/{prefix}/namespaces/{namespace}"
    UPDATE_NAMESPACE = "POST /v1/{prefix}/namespaces/{namespace}/properties"
    LIST_TABLES = "GET /v1/{prefix}/namespaces/{namespace}/tables"
    CREATE_TABLE = "POST /v1/{prefix}/namespaces/{namespace}/tables"
    REGISTER_TABLE = "POST /v1/{prefix}/namespaces/{namespace}/register"
    LOAD_TABLE = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    TABLE_EXISTS = "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    COMMIT_TABLE = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    DROP_TABLE = "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    REPORT_METRICS = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"
    RENAME_TABLE = "POST /v1/{prefix}/tables/rename"
    COMMIT_TRANSACTION = "POST /v1/{prefix}/transactions/commit"
    CREATE_VIEW = "POST /v1/{prefix}/namespaces/{namespace}/views"
    REGISTER_VIEW = "POST /v1/{prefix}/namespaces/{namespace}/register-view"
    LOAD_VIEW = "GET /v1/{prefix}/namespaces/{namespace}/views/{view}"
    REPLACE_VIEW = "POST /v1/{prefix}/namespaces/{namespace}/views/{view}"
    DROP_VIEW = "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}"
    RENAME_VIEW = "POST /v1/{prefix}/views/rename"

    @property
    def method(self) -> str:
        return self.value.partition(" ")[0]

    @property
    def mutates(self) -> bool:
        return self in MUTATIONS

    def path(self, prefix: str, names: dict[str, str]) -> str:
        """Below the catalog's uri. The prefix and the names are encoded already."""
        template = self.value.partition(" /")[2]
        if not prefix:
            template = template.replace("{prefix}/", "")
        return template.format(prefix=prefix, **names)


# What may be repeated only under a key. Neither tokens nor metrics nor scan plans change a catalog.
MUTATIONS = frozenset(
    {
        Endpoint.CREATE_NAMESPACE,
        Endpoint.DROP_NAMESPACE,
        Endpoint.UPDATE_NAMESPACE,
        Endpoint.CREATE_TABLE,
        Endpoint.REGISTER_TABLE,
        Endpoint.COMMIT_TABLE,
        Endpoint.DROP_TABLE,
        Endpoint.RENAME_TABLE,
        Endpoint.COMMIT_TRANSACTION,
        Endpoint.CREATE_VIEW,
        Endpoint.REGISTER_VIEW,
        Endpoint.REPLACE_VIEW,
        Endpoint.DROP_VIEW,
        Endpoint.RENAME_VIEW,
    }
)

# A server that does not say what it has is taken to have these.
DEFAULTS = frozenset(
    {
        Endpoint.LIST_NAMESPACES,
        Endpoint.CREATE_NAMESPACE,
        Endpoint.LOAD_NAMESPACE,
        Endpoint.DROP_NAMESPACE,
        Endpoint.UPDATE_NAMESPACE,
        Endpoint.LIST_TABLES,
        Endpoint.CREATE_TABLE,
        Endpoint.LOAD_TABLE,
        Endpoint.COMMIT_TABLE,
        Endpoint.DROP_TABLE,
        Endpoint.REGISTER_TABLE,
        Endpoint.REPORT_METRICS,
        Endpoint.RENAME_TABLE,
        Endpoint.COMMIT_TRANSACTION,
    }
)


def _pattern(endpoint: Endpoint) -> re.Pattern[str]:
    """For whole paths. A prefix may have slashes in it; names have theirs encoded."""
    path = endpoint.value.partition(" ")[2].replace("{prefix}/", "(?:.+/)?")
    return re.compile("(?P<base>.*?)" + re.sub(r"\{\w+\}", "[^/]+", path))


_PATTERNS = [(endpoint.method, _pattern(endpoint)) for endpoint in sorted(MUTATIONS)]


def find_mutation(method: str, path: str) -> str | None:
    """The path of the catalog to which this request is a mutation; None if it is none."""
    for verb, pattern in _PATTERNS:
        if verb == method and (found := pattern.fullmatch(path)):
            return found["base"]
    return None
