"""Which requests change a catalog, and where that catalog is."""

from __future__ import annotations

import pytest

from moraine.iceberg.endpoints import OPERATION_IDS, Endpoint, find_endpoint, find_mutation

NAMES = {"namespace": "a%1Fb", "table": "t", "view": "v"}


@pytest.mark.parametrize("endpoint", sorted(OPERATION_IDS))
@pytest.mark.parametrize("prefix", ["", "ws", "catalogs/main", "namespaces", "v1"])
@pytest.mark.parametrize("base", ["", "/api/catalog", "/iceberg"])
def test_iceberg_endpoint_of_every_mutation_is_found_with_its_catalog(
    endpoint: Endpoint, prefix: str, base: str
) -> None:
    path = f"{base}/{endpoint.path(prefix, NAMES)}"
    assert find_mutation(endpoint.method, path) == base


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/oauth/tokens"),
        ("POST", "/v1/p/namespaces/n/tables/t/metrics"),
        ("POST", "/v1/p/namespaces/n/tables/t/plan"),
        ("DELETE", "/v1/p/namespaces/n/tables/t/plan/1"),
        ("POST", "/v1/p/namespaces/n/tables/t/tasks"),
        ("GET", "/v1/p/namespaces/n/tables/t"),
        ("HEAD", "/v1/p/namespaces/n/tables/t"),
        ("PUT", "/v1/p/namespaces/n/tables/t"),
        ("DELETE", "/v1/p/namespaces"),
        ("POST", "/v2/namespaces"),
        ("POST", "/namespaces"),
        ("POST", "v1/namespaces"),
        ("POST", "/v1/namespaces//tables"),
    ],
)
def test_iceberg_endpoint_of_another_request_is_none(method: str, path: str) -> None:
    assert find_mutation(method, path) is None


@pytest.mark.parametrize("name", ["metrics", "plan", "rename", "namespaces", "tables", "v1"])
def test_iceberg_endpoint_of_a_table_named_like_a_route(name: str) -> None:
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}") == "/c"
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}/metrics") is None
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}/plan") is None


def test_iceberg_endpoint_path_has_the_prefix_if_there_is_one() -> None:
    assert Endpoint.LOAD_TABLE.path("", NAMES) == "v1/namespaces/a%1Fb/tables/t"
    assert Endpoint.LOAD_TABLE.path("a%7Cb", NAMES) == "v1/a%7Cb/namespaces/a%1Fb/tables/t"
    assert Endpoint.GET_CONFIG.path("p", NAMES) == "v1/config"
    assert Endpoint.DROP_TABLE.method == "DELETE"


def test_iceberg_endpoint_mutates_unless_it_is_a_read() -> None:
    assert {one for one in Endpoint if one.method != "GET"} == set(OPERATION_IDS)
    assert all(one.mutates is (one in OPERATION_IDS) for one in Endpoint)
    assert len(set(OPERATION_IDS.values())) == 14


@pytest.mark.parametrize("endpoint", Endpoint)
def test_iceberg_endpoint_is_found_by_its_path_below_the_prefix(endpoint: Endpoint) -> None:
    segments = endpoint.path("", NAMES).split("/")[1:]
    assert find_endpoint(endpoint.method, segments) is endpoint
    assert find_endpoint("PATCH", segments) is None
    assert find_endpoint(endpoint.method, ["p", *segments]) is None
    assert find_endpoint(endpoint.method, [*segments, "a", "b", "c", "d"]) is None
