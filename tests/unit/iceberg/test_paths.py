"""The paths of the Iceberg REST spec: what they are about, however they are written."""

from __future__ import annotations

import pytest

from moraine.errors import BadRequest
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import Identifier, ObjectKind
from moraine.iceberg.paths import CatalogPaths, NoSuchRoute, Route, WrongPrefix, parse, split_path

NS, TABLE, VIEW = ObjectKind.NAMESPACE, ObjectKind.TABLE, ObjectKind.VIEW
PREFIXES = ["", "main%7Cwarehouse", "main|warehouse", "a/b", "namespaces-of-mine", "catalogs/x"]


def route_of(method: str, path: str, prefix: str = "", separator: str = "%1F") -> Route:
    return parse(method, split_path(path), CatalogPaths.of(prefix, separator))


# Every route of the spec below its prefix: the endpoint, and what the path names.
ROUTES: list[tuple[str, str, Endpoint | None, Identifier | None]] = [
    ("GET", "namespaces", Endpoint.LIST_NAMESPACES, None),
    ("POST", "namespaces", Endpoint.CREATE_NAMESPACE, None),
    ("GET", "namespaces/n", Endpoint.LOAD_NAMESPACE, Identifier(NS, ("n",))),
    ("HEAD", "namespaces/n", None, Identifier(NS, ("n",))),
    ("DELETE", "namespaces/n", Endpoint.DROP_NAMESPACE, Identifier(NS, ("n",))),
    ("POST", "namespaces/n/properties", Endpoint.UPDATE_NAMESPACE, Identifier(NS, ("n",))),
    ("GET", "namespaces/n/tables", Endpoint.LIST_TABLES, Identifier(NS, ("n",))),
    ("POST", "namespaces/n/tables", Endpoint.CREATE_TABLE, Identifier(NS, ("n",))),
    ("POST", "namespaces/n/register", Endpoint.REGISTER_TABLE, Identifier(NS, ("n",))),
    ("GET", "namespaces/n/tables/t", Endpoint.LOAD_TABLE, Identifier(TABLE, ("n",), "t")),
    ("HEAD", "namespaces/n/tables/t", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t", Endpoint.COMMIT_TABLE, Identifier(TABLE, ("n",), "t")),
    ("DELETE", "namespaces/n/tables/t", Endpoint.DROP_TABLE, Identifier(TABLE, ("n",), "t")),
    ("GET", "namespaces/n/tables/t/credentials", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/metrics", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/plan", None, Identifier(TABLE, ("n",), "t")),
    ("GET", "namespaces/n/tables/t/plan/7", None, Identifier(TABLE, ("n",), "t")),
    ("DELETE", "namespaces/n/tables/t/plan/7", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/tasks", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "namespaces/n/tables/t/sign", None, Identifier(TABLE, ("n",), "t")),
    ("POST", "tables/rename", Endpoint.RENAME_TABLE, None),
    ("POST", "transactions/commit", Endpoint.COMMIT_TRANSACTION, None),
    ("GET", "namespaces/n/views", None, Identifier(NS, ("n",))),
    ("POST", "namespaces/n/views", Endpoint.CREATE_VIEW, Identifier(NS, ("n",))),
    ("POST", "namespaces/n/register-view", Endpoint.REGISTER_VIEW, Identifier(NS, ("n",))),
    ("GET", "namespaces/n/views/v", Endpoint.LOAD_VIEW, Identifier(VIEW, ("n",), "v")),
    ("HEAD", "namespaces/n/views/v", None, Identifier(VIEW, ("n",), "v")),
    ("POST", "namespaces/n/views/v", Endpoint.REPLACE_VIEW, Identifier(VIEW, ("n",), "v")),
    ("DELETE", "namespaces/n/views/v", Endpoint.DROP_VIEW, Identifier(VIEW, ("n",), "v")),
    ("POST", "views/rename", Endpoint.RENAME_VIEW, None),
]


def test_iceberg_path_of_every_endpoint_has_a_route() -> None:
    assert {endpoint for _, _, endpoint, _ in ROUTES} == {*Endpoint, None} - {Endpoint.GET_CONFIG}


@pytest.mark.parametrize("catalog", ["", "/prod"])
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("method", "path", "endpoint", "target"), ROUTES)
def test_iceberg_path_is_routed_to_its_endpoint(
    method: str,
    path: str,
    endpoint: Endpoint | None,
    target: Identifier | None,
    prefix: str,
    catalog: str,
) -> None:
    whole = "/v1/" + "/".join(filter(None, [prefix, path]))
    assert split_path(catalog + whole).catalog == (catalog[1:] or None)
    route = route_of(method, catalog + whole, prefix)
    assert route.path == whole.replace("|", "%7C")
    assert route.endpoint is endpoint
    if target is not None:
        assert route.target == target
        # Where the catalog has it is where the client said it was.
        below = path.split("/")
        depth = {NS: 2, TABLE: 4, VIEW: 4}[target.kind]
        expected = "/v1/" + "/".join(filter(None, [prefix, *below[:depth]]))
        assert route.paths.path_of(target) == expected.replace("|", "%7C")


@pytest.mark.parametrize("path", ["/v1/config", "/prod/v1/config"])
def test_iceberg_path_of_the_config(path: str) -> None:
    assert route_of("GET", path).endpoint is Endpoint.GET_CONFIG
    assert route_of("GET", path, "p").endpoint is Endpoint.GET_CONFIG
    assert route_of("POST", path).endpoint is None


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
def test_iceberg_path_catalog_names(path: str, catalog: str | None) -> None:
    assert split_path(path).catalog == catalog


@pytest.mark.parametrize(
    ("namespace", "separator", "levels"),
    [
        ("a", "%1F", ("a",)),
        ("a%1Fb", "%1F", ("a", "b")),
        ("a%1fb%1Fc", "%1F", ("a", "b", "c")),
        ("a%2Eb", "%2E", ("a", "b")),
        ("a%2eb", "%2E", ("a", "b")),
        ("a%1Fb", "%2E", ("a", "b")),
        # PyIceberg writes the plain sign, Spark its encoded form.
        ("a.b", "%2E", ("a", "b")),
        ("a.b%2ec", "%2E", ("a", "b", "c")),
        ("a.b", ".", ("a", "b")),
        ("a%2Eb", ".", ("a", "b")),
        ("a%252Eb", "%2E", ("a%2Eb",)),
        ("a.b", "%1F", ("a.b",)),
        ("a%2Eb", "%1F", ("a.b",)),
        ("gr%C3%BC%C3%9Fe%1F%E6%97%A5%E6%9C%AC", "%1F", ("grüße", "日本")),
        ("a%2Fb", "%1F", ("a/b",)),
        ("a%20b", "%1F", ("a b",)),
        ("a+b", "%1F", ("a+b",)),
    ],
)
def test_iceberg_path_levels_of_a_namespace(
    namespace: str, separator: str, levels: tuple[str, ...]
) -> None:
    route = route_of("GET", f"/v1/namespaces/{namespace}", separator=separator)
    assert route.target == Identifier(NS, levels)


def test_iceberg_path_names_are_decoded_once_and_encoded_again() -> None:
    path = "/v1/p%7Cw/namespaces/a%1Fb%2Fc/tables/t%2520%2F%C3%BC"
    route = route_of("POST", path, "p%7Cw")
    assert route.target == Identifier(TABLE, ("a", "b/c"), "t%20/ü")
    assert route.paths.path_of(route.target) == route.path == path
    elsewhere = Identifier(VIEW, ("x",), "y z")
    assert route.paths.path_of(elsewhere) == "/v1/p%7Cw/namespaces/x/views/y%20z"
    assert (
        CatalogPaths.of("p", "%2E").path_of(Identifier(NS, ("x", "y"))) == "/v1/p/namespaces/x%2Ey"
    )


@pytest.mark.parametrize(
    ("namespace", "sent"),
    [("a.b", "a%2Eb"), ("a%2eb", "a%2Eb"), ("a%1Fb", "a%1Fb"), ("a%1fb%2Ec", "a%1Fb.c")],
)
def test_iceberg_path_levels_are_joined_with_the_catalogs_separator(
    namespace: str, sent: str
) -> None:
    route = route_of("GET", f"/v1/namespaces/{namespace}/tables/t/plan", separator="%2E")
    assert route.path == f"/v1/namespaces/{sent}/tables/t/plan"


# --- The prefix -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("other/namespaces/n/tables/t", "prod"),
        ("namespaces/n/tables/t", "prod"),
        ("prod/other/namespaces/n", "prod"),
        ("Prod/namespaces/n", "prod"),
        ("prod%2Fnamespaces/n/namespaces/x", "prod"),
        ("other/transactions/commit", "prod"),
        ("other/tables/rename", "prod"),
        ("other/views/rename", ""),
        ("other/namespaces", ""),
        ("v1/namespaces/n/tables/t", ""),
        ("other/Namespaces/n/tables/t", ""),
        ("other/namespaces/n/something-new", ""),
        ("main%7Cother/namespaces/n", "main%7Cwarehouse"),
        ("a/namespaces/n", "a/b"),
    ],
)
def test_iceberg_path_of_another_catalog_is_refused(path: str, prefix: str) -> None:
    with pytest.raises(WrongPrefix) as refusal:
        route_of("DELETE", f"/v1/{path}", prefix)
    assert refusal.value.http_status == 400
    assert f"/v1/{prefix}" in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("prod/namespaces/other/tables/namespaces", "prod"),
        ("%70rod/namespaces/n", "prod"),
        ("main|warehouse/namespaces/n", "main%7Cwarehouse"),
        ("main%7cwarehouse/namespaces/n", "main%7Cwarehouse"),
        ("main%7Cwarehouse/namespaces/n", "main|warehouse"),
        ("a/b/namespaces/n", "/a/b/"),
        ("a%2Fb/namespaces/n", "a%2Fb"),
    ],
)
def test_iceberg_path_of_the_catalog_itself_is_accepted_in_any_spelling(
    path: str, prefix: str
) -> None:
    assert route_of("DELETE", f"/v1/{path}", prefix).target.namespace


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
        "/v1/namespaces/n/tables/\xfc",
        # As Jetty, Tomcat and whatever stands before them may read it.
        "/v1/..;/..;/management/v1/principals",
        "/v1/..;a=b/config",
        "/v1/%2e%2e%3b/config",
        "/v1/.;/config",
        "/v1/namespaces;x/n",
        "/v1/namespaces/n;/tables",
        "/v1/..%2F..%2Fmanagement",
        "/v1/namespaces/a%2f..%2fb",
        "/v1/namespaces/a%2F%2E%2e%3Bx%2Fb",
        "/v1/..%5cmanagement",
        "/v1/namespaces/a%5Cb",
        "/v1/namespaces/a\\b",
        "/v1/%252e%252e/management",
        "/v1/%25252e%25252e/management",
        "/v1/..%252Fmanagement",
        "/v1/namespaces/a%255c..%255cb",
    ],
)
def test_iceberg_path_that_may_be_read_as_another_is_refused(path: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        split_path(path)
    assert refusal.value.http_status == 400


@pytest.mark.parametrize("path", ["", "/", "/v1", "/prod", "/prod/v1", "/a/b/v1/config", "/v2/x"])
def test_iceberg_path_that_the_gateway_does_not_serve(path: str) -> None:
    with pytest.raises(NoSuchRoute) as refusal:
        split_path(path)
    assert refusal.value.http_status == 404


@pytest.mark.parametrize(
    "name",
    ["a..b", "...", "a%2Fb", "100%25", "%25", "a%252Fb", "semi%3Bcolon", ".hidden", "%2E%2E."],
)
def test_iceberg_path_with_names_that_only_resemble_unserved_routes(name: str) -> None:
    assert route_of("GET", f"/v1/namespaces/{name}").target.namespace


@pytest.mark.parametrize("path", ["/v1/oauth/tokens", "/v1/something/new", "/v1/namespaces/n/x"])
def test_iceberg_path_unknown_to_the_spec_is_passed_on(path: str) -> None:
    route = route_of("POST", path)
    assert route.path == path
    assert route.endpoint is None


# --- Where a key is unique ------------------------------------------------------------------

SPELLINGS = [
    ("/v1/namespaces/a%1Fb/tables/t", "/v1/namespaces/a%1fb/tables/t"),
    ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/tables/t/"),
    ("/v1/namespaces/n/tables/t", "/v1/namespaces/%6E/tables/%74"),
    ("/v1/namespaces/n/tables/t", "/v1/%6Eamespaces/n/%74ables/t"),
    ("/v1/namespaces/a%7Cw", "/v1/namespaces/a|w"),
    ("/v1/namespaces/gr%C3%BC%C3%9Fe", "/v1/namespaces/gr%c3%bc%c3%9fe"),
    ("/v1/namespaces/a~b", "/v1/namespaces/a%7Eb"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_iceberg_path_spellings_of_one_resource_are_equal(one: str, other: str) -> None:
    assert route_of("POST", one) == route_of("POST", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/tables/T"),
        ("/v1/namespaces/n/tables/t", "/v1/namespaces/n/views/t"),
        ("/v1/namespaces/a%2Fb", "/v1/namespaces/a/b"),
        ("/v1/namespaces/a%1Fb", "/v1/namespaces/a.b"),
        ("/v1/namespaces/a%2520", "/v1/namespaces/a%20"),
        # Iceberg's Java client writes a space so, and a plus as %2B.
        ("/v1/namespaces/a+b", "/v1/namespaces/a%20b"),
        ("/v1/namespaces/a+b", "/v1/namespaces/a%2Bb"),
        ("/v1/namespaces/n%2Ftables", "/v1/namespaces/n/tables"),
    ],
)
def test_iceberg_path_of_two_resources_differs(one: str, other: str) -> None:
    assert route_of("POST", one).path != route_of("POST", other).path
