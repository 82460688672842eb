"""The endpoints of Iceberg's REST catalog API, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

_Shape = tuple[str, ...]


class Endpoint(StrEnum):
    """A method and a path, as a server advertises them; names in braces are parameters."""

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
    COMMIT_TABLE = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}"
    DROP_TABLE = "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}"
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
        return self in OPERATION_IDS

    def path(self, prefix: str, names: dict[str, str]) -> str:
        """Below the catalog's uri. The prefix and the names are encoded already."""
        template = self.value.partition(" /")[2]
        if not prefix:
            template = template.replace("{prefix}/", "")
        return template.format(prefix=prefix, **names)


OPERATION_IDS = {
    Endpoint.CREATE_NAMESPACE: "createNamespace",
    Endpoint.DROP_NAMESPACE: "dropNamespace",
    Endpoint.UPDATE_NAMESPACE: "updateProperties",
    Endpoint.CREATE_TABLE: "createTable",
    Endpoint.REGISTER_TABLE: "registerTable",
    Endpoint.COMMIT_TABLE: "updateTable",
    Endpoint.DROP_TABLE: "dropTable",
    Endpoint.RENAME_TABLE: "renameTable",
    Endpoint.COMMIT_TRANSACTION: "commitTransaction",
    Endpoint.CREATE_VIEW: "createView",
    Endpoint.REGISTER_VIEW: "registerView",
    Endpoint.REPLACE_VIEW: "replaceView",
    Endpoint.DROP_VIEW: "dropView",
    Endpoint.RENAME_VIEW: "renameView",
}
"""The mutations, with their ids in the OpenAPI document. Only a key makes them safe to repeat.
Requests for tokens, metrics and scan plans are POSTs too, but do not change a catalog."""


def find_endpoint(method: str, segments: Sequence[str]) -> Endpoint | None:
    """The endpoint of a request, by its path below the prefix; None if the spec has none."""
    return _ENDPOINTS.get(_shape(method, segments))


def find_mutation(method: str, path: str) -> str | None:
    """The path of the catalog that a request changes; None if it is no mutation.

    Neither the catalog's path nor its prefix is known, and both may have slashes in them. Slashes
    in names are encoded.
    """
    base, *others = path.split("/v1/")
    while others:
        below = "/v1/".join(others).split("/")
        for start in range(len(below)):
            endpoint = find_endpoint(method, below[start:])
            if endpoint is not None and endpoint.mutates and all(below[start:]):
                return base
        base = f"{base}/v1/{others.pop(0)}"
    return None


def _shape(method: str, segments: Sequence[str]) -> _Shape:
    """The path without its names: the second and the fourth segment below `namespaces`."""
    if segments and segments[0] == "namespaces":
        return method, *("" if index in (1, 3) else part for index, part in enumerate(segments))
    return method, *segments


_ENDPOINTS = {
    _shape(one.method, one.path("", {"namespace": "", "table": "", "view": ""}).split("/")[1:]): one
    for one in Endpoint
}
