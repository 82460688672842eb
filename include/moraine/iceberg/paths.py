"""The paths of the Iceberg REST spec: which catalog a request is for, and what it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from moraine.errors import BadRequest
from moraine.iceberg.endpoints import Endpoint, find_endpoint
from moraine.iceberg.model import Identifier, ObjectKind

# Joins the levels of a namespace in a path; always accepted, even if a catalog advertises another.
DEFAULT_SEPARATOR = "%1F"

_NAMED = re.compile(r"/(?P<catalog>[^/]+)/v1/(?P<path>.*)")
# The first segments of the spec's paths, below the prefix.
_ROOTS = frozenset({"namespaces", "tables", "views", "transactions"})
# Each server on the way may decode a path once.
_DECODINGS = 3


class NoSuchRoute(BadRequest, code="NOT_FOUND", http_status=404):
    """The gateway serves /catalog/v1/… and /catalog/NAME/v1/…, for the catalogs it knows."""


class WrongPrefix(BadRequest, code="WRONG_PREFIX"):
    """The path has another prefix than this catalog."""

    def __init__(self, paths: CatalogPaths) -> None:
        super().__init__(
            "The path does not belong to the catalog at this address. Its paths begin with "
            f"{paths.root}, as GET /v1/config without a warehouse says."
        )


@dataclass(frozen=True, slots=True)
class Address:
    """A path, parsed: the same for every spelling of it."""

    catalog: str | None
    """The name in the path; None for the default catalog."""
    segments: tuple[str, ...]
    """Below `/v1/`, each in its canonical form."""

    @property
    def path(self) -> str:
        return f"/v1/{'/'.join(self.segments)}"


@dataclass(frozen=True, slots=True)
class CatalogPaths:
    """The paths of one catalog."""

    prefix: tuple[str, ...] = ()
    """Segments in their canonical form."""
    separator: str = DEFAULT_SEPARATOR
    """Joins the levels of a namespace; percent-encoded, as the catalog advertises it."""

    @classmethod
    def of(cls, prefix: str, separator: str) -> CatalogPaths:
        """From what a catalog advertises, which goes into paths as it is."""
        segments = filter(None, prefix.split("/"))
        return cls(tuple(map(_canonical, segments)), separator or DEFAULT_SEPARATOR)

    @property
    def root(self) -> str:
        return "/".join(["/v1", *self.prefix, ""])

    def path_of(self, target: Identifier) -> str:
        """The path of a namespace, table or view."""
        levels = self.separator.join(quote(level, safe="") for level in target.namespace)
        path = f"{self.root}namespaces/{levels}"
        name = quote(target.name, safe="")
        match target.kind:
            case ObjectKind.TABLE:
                return f"{path}/tables/{name}"
            case ObjectKind.VIEW:
                return f"{path}/views/{name}"
            case ObjectKind.NAMESPACE:
                return path

    def below(self, segments: tuple[str, ...]) -> tuple[str, ...]:
        """The segments after the prefix; none if the path is not in the spec."""
        depth = len(self.prefix)
        below = segments[depth:]
        if segments[:depth] == self.prefix and below and below[0] in _ROOTS:
            return below
        if any(segment.lower() in _ROOTS for segment in segments):
            raise WrongPrefix(self)
        return ()

    def split(self, namespace: str) -> tuple[str, list[str]]:
        """The separator of a namespace in a path, and the levels. As in Iceberg's own servers, the
        default separator is accepted even if another one is advertised."""
        for mark in (DEFAULT_SEPARATOR, self.separator):
            levels = namespace.split(_canonical(mark))
            if len(levels) > 1:
                return mark, levels
        return self.separator, [namespace]


_NOTHING = Identifier(ObjectKind.NAMESPACE, ())


@dataclass(frozen=True, slots=True)
class Route:
    """One request's path, and what it is about."""

    method: str
    path: str
    """From `/v1/` on, in its canonical form: it goes to the catalog, and a key belongs to it."""
    paths: CatalogPaths = CatalogPaths()
    target: Identifier = _NOTHING
    endpoint: Endpoint | None = None
    """None for a request that the spec does not know."""


def split_path(path: str) -> Address:
    """Parse what follows `/catalog`, still percent-encoded."""
    catalog = None
    if not path.startswith("/v1/") and (named := _NAMED.fullmatch(path)):
        catalog, path = unquote(named["catalog"]), f"/v1/{named['path']}"
    if not path.startswith("/v1/"):
        raise NoSuchRoute()
    segments = path.removeprefix("/v1/").rstrip("/").split("/")
    if not all(map(_is_name, segments)):
        raise BadRequest(
            "The path has a segment that is empty, of dots, or no text, or a ';' or a backslash."
        )
    return Address(catalog, tuple(map(_canonical, segments)))


def parse(method: str, address: Address, paths: CatalogPaths) -> Route:
    """What a path is about in a catalog. A path that the spec does not know names nothing."""
    below = paths.below(address.segments)
    endpoint = find_endpoint(method, below or address.segments)
    if below[:1] != ("namespaces",) or len(below) < 2:
        return Route(method, address.path, paths, endpoint=endpoint)
    mark, levels = paths.split(below[1])
    path = f"{paths.root}{'/'.join(['namespaces', mark.join(levels), *below[2:]])}"
    return Route(method, path, paths, _target(below, tuple(map(unquote, levels))), endpoint)


def _target(below: tuple[str, ...], namespace: tuple[str, ...]) -> Identifier:
    """A path below a table's, such as that of its metrics, is about the table."""
    match below:
        case [_, _, "tables", table, *_]:
            return Identifier(ObjectKind.TABLE, namespace, unquote(table))
        case [_, _, "views", view]:
            return Identifier(ObjectKind.VIEW, namespace, unquote(view))
        case _:
            return Identifier(ObjectKind.NAMESPACE, namespace)


def _is_name(segment: str) -> bool:
    """Whether no server can take the segment for anything but one name."""
    try:
        name = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return False
    if not name or not segment.isascii() or ";" in segment or "\\" in name or "\x00" in name:
        return False
    for _ in range(_DECODINGS):
        if any(part.partition(";")[0] in (".", "..") for part in re.split(r"[/\\]", name)):
            return False
        name = unquote(name)
    return True


def _canonical(segment: str) -> str:
    """The canonical spelling of a segment. A plus is kept: some servers read it as a space."""
    return "+".join(quote(unquote(part), safe="") for part in segment.split("+"))


def whole_query(kind: ObjectKind) -> str:
    """For a load of all snapshots, including those that no branch names."""
    return "snapshots=all" if kind is ObjectKind.TABLE else ""
