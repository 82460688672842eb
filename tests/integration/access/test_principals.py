"""Who asked: on tasks and their history, in what callers see, and for whose keys."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import requests

from moraine.errors import Cancelled, StorageRefused
from support.access import AccessSite
from support.api_server import SYNC, purge
from support.gateway import error_of
from support.issuer import URL, Issuer

ALICE, BOB, POLARIS = (f"{URL} {name}" for name in ("alice", "bob", "polaris"))
REPLAYED = "Idempotency-Replayed"


def causes(site: AccessSite, task_id: str) -> list[tuple[str, str]]:
    """The state of each version, and who caused it."""
    history = site.api().task(task_id)["history"]
    return [(row["ledger_status"], row["requested_by"]) for row in history]


# --- Tasks and their history ------------------------------------------------------------------


def test_task_names_who_submitted_it(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    assert site.api(sub="bob").task(task_id)["requested_by"] == ALICE
    assert causes(site, task_id) == [("SUBMITTED", ALICE)]
    [listed] = site.api().get("/v1/tasks", params={"table": f"demo.shop.{table}"}).json()["tasks"]
    assert listed["requested_by"] == ALICE


def test_history_names_who_cancelled_a_waiting_task(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    assert site.api(sub="bob").post(f"/v1/tasks/{task_id}/cancel").status_code == 202
    assert causes(site, task_id) == [("SUBMITTED", ALICE), ("FAILURE", BOB)]
    assert site.api().task(task_id)["requested_by"] == ALICE


def test_history_names_who_cancelled_a_running_task(site: AccessSite, table: str) -> None:
    """The worker ends it, on behalf of the one who asked first."""
    task_id = site.api(sub="alice").submit(table)
    claim = site.hand.running(task_id)
    for name in ("bob", "polaris"):
        assert site.api(sub=name).post(f"/v1/tasks/{task_id}/cancel").status_code == 202
    site.hand.fail(claim, Cancelled())
    states = causes(site, task_id)
    assert states[-1] == ("FAILURE", BOB)
    assert {who for _, who in states[:-1]} == {ALICE}
    assert site.api().task(task_id)["requested_by"] == ALICE


def test_a_failure_of_its_own_is_not_a_cancel(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    claim = site.hand.running(task_id)
    assert site.api(sub="bob").post(f"/v1/tasks/{task_id}/cancel").status_code == 202
    site.hand.fail(claim, StorageRefused("Access denied."))
    assert causes(site, task_id)[-1] == ("FAILURE", ALICE)


def test_a_retried_task_runs_for_who_retried_it(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    assert site.api(sub="bob").post(f"/v1/tasks/{task_id}/cancel").status_code == 202
    assert site.api().post(f"/v1/tasks/{task_id}/retry").status_code == 202
    assert site.api().task(task_id)["requested_by"] == POLARIS
    claim = site.hand.running(task_id)
    site.hand.fail(claim, Cancelled())
    states = causes(site, task_id)
    assert states[:3] == [("SUBMITTED", ALICE), ("FAILURE", BOB), ("SUBMITTED", POLARIS)]
    assert {who for _, who in states[3:]} == {POLARIS}, "the old cancel is forgotten"


def test_callers_of_two_issuers_with_one_name_are_two(site: AccessSite, table: str) -> None:
    """A token of another issuer does not become this issuer's alice by its name."""
    token = Issuer().token(sub="alice", iss="https://elsewhere.example")
    headers = {"Authorization": f"Bearer {token}"}
    response = site.api().post("/v1/tasks", json=purge(table), headers=headers)
    assert response.status_code == 401


# --- What a policy shows ----------------------------------------------------------------------


def listed(site: AccessSite, **options: Any) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        params = {"limit": 5, **({"cursor": cursor} if cursor else {})}
        page = site.api(**options).get("/v1/tasks", params=params).json()
        found |= {task["subject"] for task in page["tasks"]}
        if (cursor := page["next_cursor"]) is None:
            return found


def test_lists_show_what_the_policy_allows(site: AccessSite, table: str, secret_table: str) -> None:
    for name in (table, secret_table):
        site.api().submit(name)
    visible, hidden = f"demo.shop.{table}", f"demo.shop.{secret_table}"
    assert {visible, hidden} <= listed(site)
    shown = listed(site, sub="shopkeeper")
    assert visible in shown
    assert not any("secret" in name for name in shown)
    by_name = site.api(sub="shopkeeper").get("/v1/tasks", params={"table": hidden})
    assert by_name.json()["tasks"] == []


def test_reads_of_one_task_ask_the_policy(site: AccessSite, table: str, secret_table: str) -> None:
    mine, secret = site.api().submit(table), site.api().submit(secret_table)
    shopkeeper = site.api(sub="shopkeeper")
    assert shopkeeper.get(f"/v1/tasks/{mine}").status_code == 200
    for path in (f"/v1/tasks/{secret}", f"/v1/tasks/{secret}/events"):
        response = shopkeeper.get(path)
        assert response.status_code == 403
        assert secret not in response.text
    unknown = shopkeeper.get(f"/v1/tasks/{uuid4()}")
    assert unknown.status_code == 404


def test_hidden_tables_are_listed_by_the_policy(
    site: AccessSite, table: str, secret_table: str
) -> None:
    for name in (table, secret_table):
        site.hide(name, site.api().submit(name))

    def names(**claims: Any) -> set[str]:
        found = site.api(**claims).get("/v1/tombstones").json()["tombstones"]
        return {tombstone["table_name"] for tombstone in found}

    assert {table, secret_table} <= names()
    assert table in names(sub="shopkeeper")
    assert secret_table not in names(sub="shopkeeper")


def test_tasks_of_another_realm_do_not_exist(site: AccessSite, table: str) -> None:
    task_id = site.api().submit(table)
    with psycopg.connect(site.ledger) as connection:
        connection.execute("UPDATE tasks SET realm_id = 'other' WHERE task_id = %s", [task_id])
    api = site.api()
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/retry")):
        assert api.request(method, f"/v1/tasks/{task_id}{path}").status_code == 404
    assert f"demo.shop.{table}" not in listed(site)
    assert site.hand.store.get(UUID(task_id)).cancel_requested_ts is None


# --- Keys -------------------------------------------------------------------------------------


@pytest.fixture
def key() -> str:
    return f"key-{uuid4()}"


def with_key(site: AccessSite, key: str, table: str, path: str = "/v1/tasks", **claims: Any) -> Any:
    api = site.api(**claims)
    return api.post(path, json=purge(table), headers={"Idempotency-Key": key})


def test_one_key_of_two_callers_is_two_requests(site: AccessSite, key: str, table: str) -> None:
    first = with_key(site, key, table, sub="alice")
    other = with_key(site, key, f"{table}_other", sub="bob")
    assert (first.status_code, other.status_code) == (202, 202)
    assert REPLAYED not in other.headers
    assert first.json()["delegation_task_id"] != other.json()["delegation_task_id"]
    for name, mine, response in (("alice", table, first), ("bob", f"{table}_other", other)):
        again = with_key(site, key, mine, sub=name)
        assert again.headers[REPLAYED] == "true"
        assert again.json() == response.json()
    assert with_key(site, key, f"{table}_other", sub="alice").status_code == 422


def test_one_key_of_two_callers_on_one_task(site: AccessSite, key: str, table: str) -> None:
    task_id = site.api().submit(table)
    headers = {"Idempotency-Key": key}
    path = f"/v1/tasks/{task_id}/cancel"
    assert site.api(sub="alice").post(path, headers=headers).status_code == 202
    other = site.api(sub="bob").post(path, headers=headers)
    assert other.status_code == 409, "it has ended; alice's answer is not bob's"
    assert REPLAYED not in other.headers
    assert site.api(sub="alice").post(path, headers=headers).headers[REPLAYED] == "true"


@pytest.mark.parametrize("path", ["/v1/tasks", SYNC])
def test_who_may_not_learns_nothing_of_a_key(
    site: AccessSite, key: str, table: str, path: str
) -> None:
    """A 422 would say that the key was used."""
    first = with_key(site, key, table, sub="alice")
    task_id = first.json()["delegation_task_id"]
    before = site.state()
    answers = {}
    for given in (key, f"new-{uuid4()}"):
        answers[given] = [
            with_key(site, given, name, path, **claims)
            for name in (table, f"{table}_other")
            for claims in (
                {"exp": 1},
                {"aud": "other"},
                {"sub": "mallory"},
                {"sub": "alice", "scope": "tasks:read"},
                {"sub": "alice", "scope": None},
            )
        ]
    for responses in answers.values():
        assert [one.status_code for one in responses] == [401, 401, 403, 403, 403] * 2
        assert not any(REPLAYED in one.headers or task_id in one.text for one in responses)
    assert [one.text for one in answers[key]] == [one.text for one in answers[given]]
    assert site.state() == before


CREATE = {"name": "orders", "schema": {"type": "struct", "schema-id": 0, "fields": []}}


def through_gateway(site: AccessSite, key: str, name: str, **claims: Any) -> requests.Response:
    caller = site.gateway(**claims)
    return caller.post("namespaces/shop/tables", {**CREATE, "name": name}, key=key)


def records(site: AccessSite, key: str) -> dict[str, Any]:
    query = "SELECT principal, http_status FROM idempotency_records WHERE idempotency_key = %s"
    with psycopg.connect(site.ledger) as connection:
        return dict(connection.execute(query, [key]).fetchall())


def test_one_key_of_two_callers_at_the_gateway_is_two_requests(site: AccessSite, key: str) -> None:
    first = through_gateway(site, key, "a", sub="alice")
    other = through_gateway(site, key, "b", sub="bob")
    assert (first.status_code, other.status_code) == (404, 404), "as the catalog said"
    assert REPLAYED not in other.headers
    assert records(site, key) == {ALICE: 404, BOB: 404}
    assert through_gateway(site, key, "a", sub="alice").headers[REPLAYED] == "true"
    assert through_gateway(site, key, "b", sub="alice").status_code == 422


def test_a_stranger_learns_nothing_of_a_key_at_the_gateway(site: AccessSite, key: str) -> None:
    assert through_gateway(site, key, "a", sub="alice").status_code == 404
    asked, before = len(site.catalog.seen), site.state()
    for name in ("a", "b"):
        for claims in ({"exp": 1}, {"aud": "other"}, {"iss": "https://elsewhere.example"}):
            response = through_gateway(site, key, name, **claims)
            assert response.status_code == 401
            assert error_of(response)["type"] == "NotAuthorizedException"
            assert REPLAYED not in response.headers
    assert len(site.catalog.seen) == asked
    assert site.state() == before
