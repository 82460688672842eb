"""The paths of the Iceberg REST spec: what they are about, however they are written."""

from __future__ import annotations

import pytest

from moraine.errors import BadRequest
from moraine.gateway.model import Kind, Operation, Target
from moraine.gateway.routes import NoSuchRoute, parse

NS, TABLE, VIEW = Kind.NAMESPACE, Kind.TABLE, Kind.VIEW
PREFIXES = ["", "main%7Cwarehouse", "main|warehouse", "a/b", "namespaces-of-mine", "catalogs/x"]

# Every route of the spec below its prefix: the operation, and what the path names.
ROUTES: list[tuple[str, str, Operation | None, Target | None]] = [
    ("GET", "namespaces", None, None),
    ("POST", "namespaces", Operation.CREATE_NAMESPACE, None),
    ("GET", "namespaces/n", None, Target(NS, ("n",))),
    ("HEAD", "namespaces/n", None, Target(NS, ("n",))),
    ("DELETE", "namespaces/n", Operation.DROP_NAMESPACE, Target(NS, ("n",))),
    ("POST", "namespaces/n/properties", Operation.UPDATE_NAMESPACE, Target(NS, ("n",))),
    ("GET", "namespaces/n/tables", None, Target(NS, ("n",))),
    ("POST", "namespaces/n/tables", Operation.CREATE_TABLE, Target(NS, ("n",))),
    ("POST", "namespaces/n/register", Operation.REGISTER_TABLE, Target(NS, ("n",))),
    ("GET", "namespaces/n/tables/t", None, Target(TABLE, ("n",), "t")),
    ("HEAD", "namespaces/n/tables/t", None, Target(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t", Operation.COMMIT_TABLE, Target(TABLE, ("n",), "t")),
    ("DELETE", "namespaces/n/tables/t", Operation.DROP_TABLE, Target(TABLE, ("n",), "t")),
    ("GET", "namespaces/n/tables/t/credentials", None, Target(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/metrics", None, Target(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/plan", None, Target(TABLE, ("n",), "t")),
    ("GET", "namespaces/n/tables/t/plan/7", None, Target(TABLE, ("n",), "t")),
    ("DELETE", "namespaces/n/tables/t/plan/7", None, Target(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/tasks", None, Target(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/sign", None, Target(TABLE, ("n",), "t")),
    ("POST", "tables/rename", Operation.RENAME_TABLE, None),
    ("POST", "transactions/commit", Operation.COMMIT_TRANSACTION, None),
    ("GET", "namespaces/n/views", None, Target(NS, ("n",))),
    ("POST", "namespaces/n/views", Operation.CREATE_VIEW, Target(NS, ("n",))),
    ("POST", "namespaces/n/register-view", Operation.REGISTER_VIEW, Target(NS, ("n",))),
    ("GET", "namespaces/n/views/v", None, Target(VIEW, ("n",), "v")),
    ("HEAD", "namespaces/n/views/v", None, Target(VIEW, ("n",), "v")),
    ("POST", "namespaces/n/views/v", Operation.REPLACE_VIEW, Target(VIEW, ("n",), "v")),
    ("DELETE", "namespaces/n/views/v", Operation.DROP_VIEW, Target(VIEW, ("n",), "v")),
    ("POST", "views/rename", Operation.RENAME_VIEW, None),
]


def test_every_mutation_has_a_route() -> None:
    assert {operation for _, _, operation, _ in ROUTES} == {*Operation, None}


@pytest.mark.parametrize("catalog", ["", "/prod"])
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("method", "path", "operation", "target"), ROUTES)
def test_routes(
    method: str,
    path: str,
    operation: Operation | None,
    target: Target | None,
    prefix: str,
    catalog: str,
) -> None:
    whole = "/v1/" + "/".join(filter(None, [prefix, path]))
    route = parse(method, catalog + whole)
    assert route.catalog == (catalog[1:] or None)
    assert route.path == whole
    assert route.prefix == prefix
    assert route.operation is operation
    assert not route.is_config
    if target is not None:
        assert route.target("%1F") == target
        # Where the catalog has it is where the client said it was.
        below = path.split("/")
        depth = {NS: 2, TABLE: 4, VIEW: 4}[target.kind]
        expected = "/v1/" + "/".join(filter(None, [prefix, *below[:depth]]))
        assert route.path_of(target, "%1F") == expected


@pytest.mark.parametrize("path", ["/v1/config", "/prod/v1/config"])
def test_config(path: str) -> None:
    assert parse("GET", path).is_config
    assert not parse("POST", path).is_config
    assert parse("GET", path).operation is None


def test_a_listing_of_tables_is_known_as_one() -> None:
    assert parse("GET", "/v1/namespaces/n/tables").lists_tables
    assert parse("GET", "/v1/p/namespaces/n/tables").lists_tables
    assert not parse("POST", "/v1/namespaces/n/tables").lists_tables
    assert not parse("GET", "/v1/namespaces/n/views").lists_tables


@pytest.mark.parametrize(
    ("path", "catalog"),
    [
        ("/prod/v1/namespaces", "prod"),
        ("/pr%20od/v1/namespaces", "pr od"),
        ("/pr%2Fod/v1/namespaces", "pr/od"),
        ("/v2/v1/namespaces", "v2"),
        ("/v1/namespaces", None),
        # Not a catalog that is called v1, but a prefix.
        ("/v1/v1/namespaces", None),
    ],
)
def test_catalog_names(path: str, catalog: str | None) -> None:
    assert parse("GET", path).catalog == catalog


@pytest.mark.parametrize(
    ("namespace", "separator", "levels"),
    [
        ("a", "%1F", ("a",)),
        ("a%1Fb", "%1F", ("a", "b")),
        ("a%1fb%1Fc", "%1F", ("a", "b", "c")),
        ("a%2Eb", "%2E", ("a", "b")),
        ("a%2eb", "%2E", ("a", "b")),
        ("a%1Fb", "%2E", ("a", "b")),
        # Iceberg's server separates at the plain sign as well as at its encoded form.
        ("a.b", "%1F", ("a.b",)),
        ("a%2Eb", "%1F", ("a.b",)),
        ("gr%C3%BC%C3%9Fe%1F%E6%97%A5%E6%9C%AC", "%1F", ("grüße", "日本")),
        ("a%2Fb", "%1F", ("a/b",)),
        ("a%20b", "%1F", ("a b",)),
        ("a+b", "%1F", ("a+b",)),
    ],
)
def test_levels_of_a_namespace(namespace: str, separator: str, levels: tuple[str, ...]) -> None:
    route = parse("GET", f"/v1/namespaces/{namespace}")
    assert route.target(separator) == Target(NS, levels)


def test_names_are_decoded_once_and_encoded_again() -> None:
    route = parse("POST", "/v1/p%7Cw/namespaces/a%1Fb%2Fc/tables/t%2520%2F%C3%BC")
    target = route.target("%1F")
    assert target == Target(TABLE, ("a", "b/c"), "t%20/ü")
    assert route.path_of(target, "%1F") == route.path
    assert route.path_of(Target(VIEW, ("x",), "y z"), "%1F") == "/v1/p%7Cw/namespaces/x/views/y%20z"
    assert route.path_of(Target(NS, ("x", "y")), "%2E") == "/v1/p%7Cw/namespaces/x%2Ey"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/../config",
        "/v1/namespaces/%2e%2e/tables",
        "/v1/namespaces/.%2E/tables",
        "/v1/./namespaces",
        "/v1/namespaces/%2E",
        "/v1/../admin",
        "/v1//namespaces",
        "/v1/namespaces//tables",
        "/prod/v1/namespaces/..",
        "/v1/",
        "/v1/namespaces/a%00b",
        "/v1/namespaces/%FF/tables",
        "/v1/namespaces/n/tables/%ED%A0%80",
    ],
)
def test_dots_empty_segments_and_what_is_no_text_are_refused(path: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse("DELETE", path)
    assert refusal.value.http_status == 400


@pytest.mark.parametrize("path", ["", "/", "/v1", "/prod", "/prod/v1", "/a/b/v1/config", "/v2/x"])
def test_what_the_gateway_does_not_serve(path: str) -> None:
    with pytest.raises(NoSuchRoute) as refusal:
        parse("GET", path)
    assert refusal.value.http_status == 404


@pytest.mark.parametrize("path", ["/v1/oauth/tokens", "/v1/something/new", "/v1/p/namespaces/n/x"])
def test_what_the_spec_does_not_know_is_passed_on(path: str) -> None:
    route = parse("POST", path)
    assert route.path == path
    assert route.operation is None


# --- Where a key is unique ------------------------------------------------------------------

SPELLINGS = [
    ("/v1/namespaces/a%1Fb/tables/t", "/v1/namespaces/a%1fb/tables/t"),
    ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/tables/t/"),
    ("/v1/namespaces/n/tables/t", "/v1/namespaces/%6E/tables/%74"),
    ("/v1/main%7Cw/namespaces/n", "/v1/main|w/namespaces/n"),
    ("/v1/namespaces/gr%C3%BC%C3%9Fe", "/v1/namespaces/gr%c3%bc%c3%9fe"),
    ("/v1/namespaces/a+b", "/v1/namespaces/a%2Bb"),
    ("/v1/namespaces/a~b", "/v1/namespaces/a%7Eb"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_two_spellings_are_one_resource(one: str, other: str) -> None:
    assert parse("POST", one).normal_path == parse("POST", other).normal_path
    assert parse("POST", other).path == other  # and yet it goes on as it came


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/tables/T"),
        ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/views/t"),
        ("/v1/namespaces/n/tables/t", "/v1/p/namespaces/n/tables/t"),
        ("/v1/namespaces/a%2Fb", "/v1/namespaces/a/b"),
        ("/v1/namespaces/a%1Fb", "/v1/namespaces/a.b"),
        ("/v1/namespaces/a%2520", "/v1/namespaces/a%20"),
        ("/v1/namespaces/a+b", "/v1/namespaces/a%20b"),
        ("/v1/namespaces/n%2Ftables", "/v1/namespaces/n/tables"),
    ],
)
def test_two_resources_are_two(one: str, other: str) -> None:
    assert parse("POST", one).normal_path != parse("POST", other).normal_path
