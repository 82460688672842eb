"""Which requests change a catalog, and where that catalog is."""

from __future__ import annotations

import pytest

from moraine.catalog.endpoints import DEFAULTS, MUTATIONS, Endpoint, find_mutation

NAMES = {"namespace": "a%1Fb", "table": "t", "view": "v"}


@pytest.mark.parametrize("endpoint", sorted(MUTATIONS))
@pytest.mark.parametrize("prefix", ["", "ws", "catalogs/main", "namespaces", "v1"])
@pytest.mark.parametrize("base", ["", "/api/catalog", "/iceberg"])
def test_every_mutation_is_found_with_its_catalog(
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
    ],
)
def test_other_requests_are_none(method: str, path: str) -> None:
    assert find_mutation(method, path) is None


@pytest.mark.parametrize("name", ["metrics", "plan", "rename", "namespaces", "tables", "v1"])
def test_a_table_may_be_called_like_a_route(name: str) -> None:
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}") == "/c"
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}/metrics") is None
    assert find_mutation("POST", f"/c/v1/namespaces/n/tables/{name}/plan") is None


def test_paths_have_the_prefix_if_there_is_one() -> None:
    assert Endpoint.LOAD_TABLE.path("", NAMES) == "v1/namespaces/a%1Fb/tables/t"
    assert Endpoint.LOAD_TABLE.path("a%7Cb", NAMES) == "v1/a%7Cb/namespaces/a%1Fb/tables/t"
    assert Endpoint.GET_CONFIG.path("p", NAMES) == "v1/config"
    assert Endpoint.TABLE_EXISTS.method == "HEAD"


def test_what_mutates_and_what_a_server_has_unasked() -> None:
    assert Endpoint.COMMIT_TABLE.mutates
    assert not Endpoint.REPORT_METRICS.mutates
    assert not {endpoint for endpoint in MUTATIONS if endpoint.method in ("GET", "HEAD")}
    assert len(DEFAULTS & MUTATIONS) == 9
