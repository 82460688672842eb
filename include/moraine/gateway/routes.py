"""The paths of the Iceberg REST spec: which catalog a request is for, and what it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from moraine.errors import BadRequest
from moraine.gateway.model import Kind, Operation, Target

# In paths a namespace's levels are joined by this, whatever else a catalog advertises.
DEFAULT_SEPARATOR = "%1F"

_MUTATIONS = {
    ("POST", "namespaces"): Operation.CREATE_NAMESPACE,
    ("DELETE", "namespaces/{ns}"): Operation.DROP_NAMESPACE,
    ("POST", "namespaces/{ns}/properties"): Operation.UPDATE_NAMESPACE,
    ("POST", "namespaces/{ns}/tables"): Operation.CREATE_TABLE,
    ("POST", "namespaces/{ns}/register"): Operation.REGISTER_TABLE,
    ("POST", "namespaces/{ns}/tables/{table}"): Operation.COMMIT_TABLE,
    ("DELETE", "namespaces/{ns}/tables/{table}"): Operation.DROP_TABLE,
    ("POST", "tables/rename"): Operation.RENAME_TABLE,
    ("POST", "transactions/commit"): Operation.COMMIT_TRANSACTION,
    ("POST", "namespaces/{ns}/views"): Operation.CREATE_VIEW,
    ("POST", "namespaces/{ns}/register-view"): Operation.REGISTER_VIEW,
    ("POST", "namespaces/{ns}/views/{view}"): Operation.REPLACE_VIEW,
    ("DELETE", "namespaces/{ns}/views/{view}"): Operation.DROP_VIEW,
    ("POST", "views/rename"): Operation.RENAME_VIEW,
}


_NAMED = re.compile(r"/(?P<catalog>[^/]+)(?P<path>/v1/.*)")


@dataclass(frozen=True, slots=True)
class Route:
    """One request's path, still percent-encoded, taken apart."""

    method: str
    path: str
    """From `/v1/` on, as the client sent it: what goes to the catalog."""
    catalog: str | None
    """As the path names it; None for the default."""
    prefix: str = ""
    namespace: str | None = None
    table: str | None = None
    view: str | None = None
    shape: str = ""
    """The path below the prefix, with marks for the names in it."""
    operation: Operation | None = None

    @property
    def lists_tables(self) -> bool:
        return self.method == "GET" and self.shape == "namespaces/{ns}/tables"

    @property
    def is_config(self) -> bool:
        return self.method == "GET" and self.path == "/v1/config"

    @property
    def normal_path(self) -> str:
        """The same for every way to write the path."""
        segments = self.path.rstrip("/").split("/")
        return "/".join(quote(unquote(segment), safe="") for segment in segments)

    @property
    def root(self) -> str:
        return f"/v1/{self.prefix}/" if self.prefix else "/v1/"

    def target(self, separator: str) -> Target:
        """What the path names. A separator is percent-encoded, as catalogs advertise it."""
        levels = split_levels(self.namespace, separator) if self.namespace else ()
        if self.table is not None:
            return Target(Kind.TABLE, levels, unquote(self.table))
        if self.view is not None:
            return Target(Kind.VIEW, levels, unquote(self.view))
        return Target(Kind.NAMESPACE, levels)

    def path_of(self, target: Target, separator: str) -> str:
        """Where the catalog has something, in the same place as this request."""
        levels = separator.join(quote(level, safe="") for level in target.namespace)
        path = f"{self.root}namespaces/{levels}"
        name = quote(target.name, safe="")
        match target.kind:
            case Kind.TABLE:
                return f"{path}/tables/{name}"
            case Kind.VIEW:
                return f"{path}/views/{name}"
            case Kind.NAMESPACE:
                return path


def parse(method: str, path: str) -> Route:
    """Take apart what follows `/catalog`. Whatever the spec does not know is passed on as it is."""
    catalog = None
    if not path.startswith("/v1/") and (named := _NAMED.fullmatch(path)):
        catalog, path = unquote(named["catalog"]), named["path"]
    if not path.startswith("/v1/"):
        raise NoSuchRoute()
    if any(unquote(segment) in ("", ".", "..") for segment in path[4:].rstrip("/").split("/")):
        raise BadRequest("The path has an empty segment, or one of dots.")
    segments = path.removeprefix("/v1/").rstrip("/").split("/")
    # Which of two readings is right cannot be told from a path; the shorter prefix is taken.
    for start in range(len(segments)):
        if found := _resource(segments[start:]):
            shape, names = found
            return Route(
                method,
                path,
                catalog,
                prefix="/".join(segments[:start]),
                shape=shape,
                operation=_MUTATIONS.get((method, shape)),
                **names,
            )
    return Route(method, path, catalog)


class NoSuchRoute(BadRequest):
    """The gateway serves /catalog/v1/… and /catalog/NAME/v1/…, for the catalogs it knows."""

    code = "NOT_FOUND"
    http_status = 404


def split_levels(namespace: str, separator: str) -> tuple[str, ...]:
    """A namespace's levels from a path. As Iceberg's own servers do, the default is understood
    even where another separator is advertised."""
    for mark in (DEFAULT_SEPARATOR, separator):
        parts = re.split(re.escape(mark), namespace, flags=re.IGNORECASE)
        if len(parts) > 1:
            return tuple(unquote(part) for part in parts)
    return (unquote(namespace),)


def whole_query(kind: Kind) -> str:
    """For a load that leaves nothing out: a snapshot that no branch names is one all the same."""
    return "snapshots=all" if kind is Kind.TABLE else ""


def _resource(segments: list[str]) -> tuple[str, dict[str, str]] | None:
    """The shape of a path below its prefix, and the names in it; None if the spec has no such."""
    match segments:
        case ["namespaces"] | ["tables" | "views", "rename"] | ["transactions", "commit"]:
            return "/".join(segments), {}
        case ["namespaces", namespace]:
            return "namespaces/{ns}", {"namespace": namespace}
        case ["namespaces", namespace, ("tables" | "views" | "properties" | "register") as last]:
            return f"namespaces/{{ns}}/{last}", {"namespace": namespace}
        case ["namespaces", namespace, "register-view"]:
            return "namespaces/{ns}/register-view", {"namespace": namespace}
        case ["namespaces", namespace, "tables", table]:
            return "namespaces/{ns}/tables/{table}", {"namespace": namespace, "table": table}
        case ["namespaces", namespace, "tables", table, *_]:
            return "namespaces/{ns}/tables/{table}/…", {"namespace": namespace, "table": table}
        case ["namespaces", namespace, "views", view]:
            return "namespaces/{ns}/views/{view}", {"namespace": namespace, "view": view}
        case _:
            return None
