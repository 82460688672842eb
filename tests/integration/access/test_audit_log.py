"""The audit log: every act before it is done, every refusal, and no way to change a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import requests
from typer.testing import CliRunner

from moraine.access.audit import ALLOWED, REFUSED, AuditLog
from moraine.access.model import Certificate, Principal
from moraine.errors import LedgerUnavailable, StorageRefused
from moraine.ledger.pools import open_pool
from moraine.settings import get_settings
from support.access import AccessSite
from support.api_server import SYNC, purge
from support.issuer import URL
from support.relay import Answer, Forward, Relay, Request


def failed(site: AccessSite, table: str) -> str:
    """A task that has failed and can be retried."""
    task_id = site.api().submit(table)
    site.hand.finish(site.hand.store.get(UUID(task_id)), StorageRefused("Access denied."))
    return task_id


def short(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["subject"], row["act"], row["outcome"]) for row in rows]


# --- What is written --------------------------------------------------------------------------


def test_submit_is_written_with_caller_address_table_and_task(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    [row] = site.audited(object=f"demo.shop.{table}")
    assert (row["issuer"], row["subject"], row["realm_id"]) == (URL, "alice", "demo")
    assert (row["act"], row["outcome"], row["address"]) == ("submit", ALLOWED, "127.0.0.1")
    assert str(row["task_id"]) == task_id
    assert (row["certificate"], row["reason"]) == (None, "")


def test_submit_with_a_key_is_written_once(site: AccessSite, table: str) -> None:
    headers = {"Idempotency-Key": f"key-{uuid4()}"}
    answers = [
        site.api(sub="alice").post("/v1/tasks", json=purge(table), headers=headers)
        for _ in range(3)
    ]
    assert {answer.status_code for answer in answers} == {202}
    [row] = site.audited(object=f"demo.shop.{table}")
    assert str(row["task_id"]) == answers[0].json()["delegation_task_id"]


def test_synchronous_submit_is_written(site: AccessSite, table: str) -> None:
    assert site.api().post(SYNC, json=purge(table)).status_code == 500  # it takes too long
    assert short(site.audited(object=f"demo.shop.{table}")) == [("polaris", "submit", ALLOWED)]


def test_cancel_and_retry_are_written_with_the_task(site: AccessSite, table: str) -> None:
    task_id = failed(site, table)
    assert site.api(sub="alice").post(f"/v1/tasks/{task_id}/retry").status_code == 202
    assert site.api(sub="bob").post(f"/v1/tasks/{task_id}/cancel").status_code == 202
    assert short(site.audited(task_id=task_id)) == [
        ("polaris", "submit", ALLOWED),
        ("alice", "retry", ALLOWED),
        ("bob", "cancel", ALLOWED),
    ]
    assert {row["object"] for row in site.audited(task_id=task_id)} == {f"demo.shop.{table}"}


def test_lift_is_written(site: AccessSite, table: str) -> None:
    task_id = failed(site, table)
    site.hide(table, task_id)
    lifted = site.api(sub="alice").post(f"/v1/tombstones/{task_id}/lift")
    assert lifted.status_code == 200, lifted.text
    [row] = site.audited(act="lift")
    assert (row["subject"], row["object"]) == ("alice", f"prod.shop.{table}")
    assert str(row["task_id"]) == task_id


@pytest.mark.parametrize("act", ["submit", "cancel", "retry", "lift", "tasks:read"])
def test_a_refusal_is_written_and_nothing_is_done(
    site: AccessSite, secret_table: str, act: str
) -> None:
    task_id = failed(site, secret_table)
    site.hide(secret_table, task_id)
    shopkeeper = site.api(sub="shopkeeper")
    before = site.state()
    response = {
        "submit": lambda: shopkeeper.post("/v1/tasks", json=purge(secret_table)),
        "cancel": lambda: shopkeeper.post(f"/v1/tasks/{task_id}/cancel"),
        "retry": lambda: shopkeeper.post(f"/v1/tasks/{task_id}/retry"),
        "lift": lambda: shopkeeper.post(f"/v1/tombstones/{task_id}/lift"),
        "tasks:read": lambda: shopkeeper.get(f"/v1/tasks/{task_id}"),
    }[act]()
    assert response.status_code == 403, response.text
    assert response.json()["error_code"] == "FORBIDDEN"
    assert site.state() == before
    [row] = site.audited(subject="shopkeeper", act=act)
    assert row["outcome"] == REFUSED
    assert row["object"].endswith(f".shop.{secret_table}")
    assert "The policy does not allow shopkeeper" in row["reason"]
    if act != "submit":
        assert str(row["task_id"]) == task_id


def test_a_caller_without_the_scope_is_written(site: AccessSite) -> None:
    response = site.api(sub="carl", scope="tasks:read").post("/v1/tasks", json=purge("x"))
    assert response.status_code == 403
    assert short(site.audited(subject="carl")) == [("carl", "tasks:execute", REFUSED)]


def test_a_refused_name_that_the_ledger_cannot_store_is_written_all_the_same(
    site: AccessSite,
) -> None:
    """Otherwise it would be a way to try names unseen."""
    url = f"{site.origin}/ingest/v1/tables/shop/a%00b"
    token = site.token(sub="shopkeeper", scope="ingest:write")
    response = requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    assert response.status_code == 403
    with open_pool(site.ledger) as pool:
        log = AuditLog(pool)
        log.add(Principal("demo", URL, "zoe"), "drop", REFUSED, table="a\0b", reason="\ud800")
    [row] = site.audited(subject="zoe")
    assert (row["object"], row["reason"]) == (r"a\x00b", r"\ud800")


def test_the_certificate_is_written(site: AccessSite) -> None:
    caller = Principal("demo", URL, "kim", certificate=Certificate("CN=kim,O=Example"))
    with open_pool(site.ledger) as pool:
        AuditLog(pool).add(caller, "submit", ALLOWED)
    [row] = site.audited(subject="kim")
    assert row["certificate"] == "CN=kim,O=Example"


# --- What cannot be done ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET outcome = 'allowed'",
        "UPDATE audit_log SET reason = '' WHERE false",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "INSERT INTO audit_log (id, realm_id, issuer, subject, address, act, outcome, object, "
        "reason) VALUES (1, '', '', '', '', '', 'allowed', '', '')",
    ],
)
def test_rows_cannot_be_changed_removed_or_numbered(
    site: AccessSite, table: str, statement: str
) -> None:
    site.api().submit(table)
    before = site.audited()
    with (
        psycopg.connect(site.ledger) as connection,
        pytest.raises((psycopg.errors.RaiseException, psycopg.errors.GeneratedAlways)),
    ):
        connection.execute(statement.encode())
    assert site.audited() == before


def test_retention_leaves_the_audit_log(site: AccessSite, table: str) -> None:
    task_id = failed(site, table)
    before = site.audited()
    assert UUID(task_id) in site.hand.store.remove_finished(timedelta(0), 1000, [])
    assert site.audited() == before
    assert len(site.audited(task_id=task_id)) == 1


@pytest.mark.parametrize(
    "act", ["submit", "keyed submit", "synchronous", "cancel", "retry", "lift"]
)
def test_nothing_is_done_that_cannot_be_written(site: AccessSite, table: str, act: str) -> None:
    task_id = failed(site, table)
    site.hide(table, task_id)
    live = site.api().submit(f"{table}_live")
    api = site.api()
    keyed = {"Idempotency-Key": f"key-{uuid4()}"}
    before, audited = site.hand.store.get(UUID(live)), len(site.audited())
    tasks = tables(site)
    with site.without_audit_log():
        response = {
            "submit": lambda: api.post("/v1/tasks", json=purge("new")),
            "keyed submit": lambda: api.post("/v1/tasks", json=purge("new"), headers=keyed),
            "synchronous": lambda: api.post(SYNC, json=purge("new")),
            "cancel": lambda: api.post(f"/v1/tasks/{live}/cancel"),
            "retry": lambda: api.post(f"/v1/tasks/{task_id}/retry"),
            "lift": lambda: api.post(f"/v1/tombstones/{task_id}/lift"),
        }[act]()
        assert response.status_code == 503, response.text
        assert response.json()["error_code"] == "LEDGER_UNAVAILABLE"
        assert tables(site) == tasks
    assert site.hand.store.get(UUID(live)) == before
    assert len(site.audited()) == audited
    if act == "keyed submit":
        again = api.post("/v1/tasks", json=purge(table), headers=keyed)
        assert again.status_code in (202, 422), "the key did not keep the failure"


def tables(site: AccessSite) -> list[Any]:
    with psycopg.connect(site.ledger) as connection:
        return [
            connection.execute(f"SELECT t::text FROM {name} AS t ORDER BY 1").fetchall()  # type: ignore[arg-type]
            for name in ("tasks", "task_history", "tombstones")
        ]


def test_a_log_that_cannot_be_written_is_an_error_of_the_ledger(site: AccessSite) -> None:
    with site.without_audit_log(), open_pool(site.ledger) as pool:
        with pytest.raises(LedgerUnavailable):
            AuditLog(pool).add(Principal("demo", URL, "x"), "submit", ALLOWED)
        # Reads do not need it.
        assert site.api().get("/v1/tasks").status_code == 200


# --- Reading it -------------------------------------------------------------------------------


def audit(site: AccessSite, **wanted: Any) -> dict[str, Any]:
    response = site.api(scope="audit:read").get("/v1/audit", params=wanted)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_audit_is_read_with_filters(site: AccessSite, table: str) -> None:
    task_id = site.api(sub="alice").submit(table)
    site.api(sub="bob").post(f"/v1/tasks/{task_id}/cancel")
    name = f"demo.shop.{table}"
    [cancel, submit] = audit(site, table=name)["entries"]
    assert (cancel["act"], submit["act"]) == ("cancel", "submit")
    assert submit["subject"] == "alice"
    assert submit["delegation_task_id"] == task_id
    assert audit(site, table=name, subject="bob")["entries"] == [cancel]
    assert audit(site, table=name, act="submit")["entries"] == [submit]
    assert audit(site, task_id=task_id)["entries"] == [cancel, submit]
    assert audit(site, table=name, outcome="refused")["entries"] == []
    assert audit(site, table=name, since=cancel["at"])["entries"] == [cancel]
    assert audit(site, table=name, since="2099-01-01T00:00:00Z")["entries"] == []
    assert audit(site, table=table)["entries"] == [], "the whole name, not a part"


def test_audit_is_read_page_by_page(site: AccessSite) -> None:
    for number in range(7):
        site.api(sub="alice").submit(f"paged{number}")
    whole = audit(site, subject="alice", limit=500)
    assert whole["next_cursor"] is None
    pages, cursor = [], None
    while True:
        page = audit(site, subject="alice", limit=3, **({"cursor": cursor} if cursor else {}))
        assert len(page["entries"]) <= 3
        pages += page["entries"]
        if (cursor := page["next_cursor"]) is None:
            break
        site.api(sub="alice").submit(f"meanwhile{cursor}")  # new rows move nothing
    assert pages == whole["entries"]
    ids = [entry["id"] for entry in pages]
    assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 501},
        {"cursor": 0},
        {"cursor": 2**63},
        {"outcome": "maybe"},
        {"task_id": "x"},
        {"since": "yesterday"},
        {"since": "2026-01-01T00:00:00"},
        {"subject": "a\0b"},
        {"act": "\0"},
        {"table": "\0"},
    ],
)
def test_audit_refuses_malformed_filters(site: AccessSite, wanted: dict[str, Any]) -> None:
    response = site.api().get("/v1/audit", params=wanted)
    assert response.status_code == 400, response.text


def test_audit_is_for_auditors(site: AccessSite) -> None:
    for claims in ({"scope": "execute_tasks"}, {"sub": "shopkeeper"}, {"sub": "mallory"}):
        assert site.api(**claims).get("/v1/audit").status_code == 403


def test_audit_shows_one_realm(site: AccessSite) -> None:
    with open_pool(site.ledger) as pool:
        AuditLog(pool).add(Principal("other", URL, "eve"), "submit", ALLOWED)
    assert len(site.audited(subject="eve")) == 1
    assert audit(site, subject="eve")["entries"] == []


# --- The command line -------------------------------------------------------------------------


class Login(Relay):
    """Airflow's web server, as far as the command line needs it: tokens, and the API behind."""

    def __init__(self, site: AccessSite) -> None:
        super().__init__(site.origin)
        self._token = site.token()

    def answer(self, request: Request, forward: Forward) -> Answer:
        if request.path == "/auth/token":
            return Answer(201, json.dumps({"access_token": self._token}).encode())
        return forward(request)


@pytest.fixture
def moraine(site: AccessSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from moraine.cli import app

    with Login(site) as login:
        monkeypatch.setenv("MORAINE_AIRFLOW__URL", login.url)
        monkeypatch.setenv("MORAINE_AIRFLOW__PASSWORD", "x")
        get_settings.cache_clear()

        def run(*words: str) -> str:
            done = CliRunner().invoke(app, list(words), env={"COLUMNS": "300"})
            assert done.exit_code == 0, (done.output, done.exception)
            return str(done.stdout)

        yield run
    get_settings.cache_clear()


def test_cli_shows_the_audit_log(site: AccessSite, moraine: Any, table: str) -> None:
    site.api(sub="alice").submit(table)
    site.api(sub="shopkeeper").post("/v1/tasks", json=purge(f"secret_{table}"))
    shown = moraine("audit", "--table", f"demo.shop.{table}")
    assert "alice" in shown
    assert "submit" in shown
    assert f"demo.shop.{table}" in shown
    page = json.loads(
        moraine(
            "audit", "--outcome", "refused", "--subject", "shopkeeper", "--limit", "1", "--json"
        )
    )
    [entry] = page["entries"]
    assert (entry["act"], entry["table"]) == ("submit", f"demo.shop.secret_{table}")
    assert "polaris" not in moraine("audit", "--subject", "alice", "--act", "submit")


@pytest.mark.parametrize("name", ["[/]x", "[red]x", "[link=https://evil.example]x", "x\x1b[2J\x07"])
def test_cli_shows_what_a_caller_wrote_and_does_not_obey_it(
    site: AccessSite, moraine: Any, name: str
) -> None:
    """A name of a table could end the listing in an error, vanish, or take over the terminal."""
    with open_pool(site.ledger) as pool:
        AuditLog(pool).add(
            Principal("demo", URL, "ann"), "drop", REFUSED, table=f"prod.{name}", reason=name
        )
    shown = moraine("audit", "--subject", "ann", "--limit", "1")
    assert name.replace("\x1b", r"\x1b").replace("\x07", r"\x07") in shown
    assert "\x1b" not in shown
