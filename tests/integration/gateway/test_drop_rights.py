"""A table that is being purged: who may wait for it, restart it, or learn of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests

from moraine.drops.tombstones import TombstoneStore
from moraine.errors import Cancelled, StorageRefused
from moraine.ledger.pools import open_pool
from moraine.tasks.model import Status, Task
from moraine.tasks.store import TaskStore
from support.airflow_server import PASSWORD, AirflowServer, airflow_server
from support.api_server import Hand
from support.gateway import Caller, Scene, error_of, gateway_settings, new_key
from support.gateway_fixtures import Rows, StartGateway
from support.guarded_catalog import GuardedCatalog
from support.waiting import wait_for

FIRE_AND_FORGET = {"task_type": "delegated", "mode": "fire-and-forget"}
SYNCHRONOUS = {"task_type": "delegated"}
STRANGERS = {"anonymous": {}, "unknown": {"Authorization": "Bearer made-up"}}
READER = {"Authorization": "Bearer rita"}
OWNER = {"Authorization": "Bearer olga"}


@pytest.fixture
def guarded(direct: Caller) -> Iterator[GuardedCatalog]:
    write = {"prod": "write"}
    with GuardedCatalog(direct.url, moraine=write, olga=write, rita={"prod": "read"}) as guarded:
        yield guarded


@pytest.fixture
def airflow() -> Iterator[AirflowServer]:
    with airflow_server() as server:
        yield server


@dataclass
class Drops:
    """Drops of one table through one gateway, and what the ledger has of its purge."""

    base: Caller
    scene: Scene
    store: TaskStore
    tombstones: TombstoneStore
    hand: Hand

    def drop(self, headers: dict[str, str], key: str | None = None) -> requests.Response:
        path = f"prod/{self.scene.path('tables', 't')}"
        given = {"purgeRequested": "true"}
        return self.base.delete(path, headers=headers, key=key, params=given, timeout=60)

    def task(self) -> Task:
        tombstone = self.tombstones.find("prod", (self.scene.namespace,), "t")
        assert tombstone is not None
        return self.store.get(tombstone.task_id)

    def end_with(self, error: Exception, **checkpoint: Any) -> Task:
        """What a worker would have written."""
        claim = self.hand.running(self.task().task_id)
        if checkpoint:
            self.store.checkpoint(claim, checkpoint)
        return self.hand.fail(claim, error)

    def lose_metadata(self) -> None:
        location = self.scene.load("t")["metadata-location"]
        Path(unquote(urlsplit(location).path)).unlink()


@pytest.fixture
def start(
    start_gateway: StartGateway,
    guarded: GuardedCatalog,
    airflow: AirflowServer,
    scene: Scene,
    ledger: str,
) -> Iterator[Callable[[dict[str, str]], Drops]]:
    with open_pool(ledger, size=2) as connections:
        tombstones = TombstoneStore(connections, "demo")

        def start(purge: dict[str, str]) -> Drops:
            auth = {"kind": "bearer", "token": "moraine"}
            catalog = {"uri": guarded.url, "warehouse": "prod", "auth": auth}
            reach = {"url": airflow.url, "password": PASSWORD, "timeout": "1s"}
            base = start_gateway({"prod": catalog}, gateway={"purge": purge}, airflow=reach)
            scene.direct.done(scene.create_table("t"))
            settings = gateway_settings(ledger, {})
            lease = settings.delegation.task.lease.lost_timeout_duration
            store = TaskStore(connections, lease=lease)
            return Drops(base, scene, store, tombstones, Hand(store, settings))

        yield start
        # Other tests share the ledger.
        if left := tombstones.find("prod", (scene.namespace,), "t"):
            tombstones.remove(left.task_id)


@pytest.fixture
def drops(start: Callable[[dict[str, str]], Drops]) -> Drops:
    """The owner has dropped the table, and did not wait."""
    drops = start(FIRE_AND_FORGET)
    assert drops.drop(OWNER).status_code == 204
    return drops


FAILED = StorageRefused("the store refused a delete")
ENDS = {
    "under way": None,
    "failed": FAILED,
    "cancelled": Cancelled(),
}


def put(drops: Drops, end: str) -> Task:
    error = ENDS[end]
    return drops.task() if error is None else drops.end_with(error)


# --- Who may not -----------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("end", ENDS)
def test_the_catalog_turns_a_stranger_away(
    drops: Drops, rows: Rows, airflow: AirflowServer, end: str, who: str, keyed: bool
) -> None:
    before, runs = put(drops, end), len(airflow.runs)
    key = new_key() if keyed else None
    refused = drops.drop(STRANGERS[who], key)
    assert (refused.status_code, error_of(refused)["message"]) == (401, "no such luck")
    check_untouched(drops, before, refused)
    assert len(airflow.runs) == runs
    assert key is None or rows(key) == []


@pytest.mark.parametrize("end", ENDS)
def test_a_reader_is_no_owner(drops: Drops, end: str) -> None:
    before = put(drops, end)
    refused = drops.drop(READER)
    assert (refused.status_code, error_of(refused)["message"]) == (403, "no such luck")
    check_untouched(drops, before, refused)


@pytest.mark.parametrize("who", [*STRANGERS, "reader"])
@pytest.mark.parametrize("end", ENDS)
def test_a_catalog_that_answers_no_such_table_lets_no_caller_in(
    drops: Drops, guarded: GuardedCatalog, end: str, who: str
) -> None:
    guarded.principals["rita"] = {}
    guarded.secretive = True
    before = put(drops, end)
    refused = drops.drop({**STRANGERS, "reader": READER}[who])
    assert (refused.status_code, error_of(refused)["type"]) == (404, "NoSuchTableException")
    check_untouched(drops, before, refused)


def check_untouched(drops: Drops, before: Task, refused: requests.Response) -> None:
    assert drops.task().version == before.version
    assert str(before.task_id) not in refused.text
    assert str(before.result_summary) not in refused.text


# --- Who may ---------------------------------------------------------------------------------


def test_a_cancelled_purge_is_the_operators(drops: Drops) -> None:
    before = put(drops, "cancelled")
    refused = drops.drop(OWNER)
    assert refused.status_code == 409
    message = error_of(refused)["message"]
    assert f"moraine tasks retry {before.task_id}" in message
    assert "moraine tables undrop" in message
    assert drops.task().version == before.version


def test_who_may_change_the_table_restarts_a_purge_that_failed(drops: Drops) -> None:
    put(drops, "failed")
    assert drops.drop(OWNER).status_code == 204
    assert drops.task().status is Status.SUBMITTED


def test_to_be_asked_about_does_not_change_the_table(
    drops: Drops, guarded: GuardedCatalog, scene: Scene
) -> None:
    """A new metadata file would end the purge: it is of another table than it was told."""
    before = scene.load("t")["metadata-location"]
    guarded.seen.clear()
    assert drops.drop(OWNER, new_key()).status_code == 204
    [asked] = guarded.changes
    assert b"assert-table-uuid" in asked.body
    assert scene.load("t")["metadata-location"] == before


# --- When the files are gone -----------------------------------------------------------------


def test_its_owner_waits_for_a_purge_that_has_deleted_the_metadata(
    start: Callable[[dict[str, str]], Drops], airflow: AirflowServer, pool: ThreadPoolExecutor
) -> None:
    drops = start(SYNCHRONOUS)
    first = pool.submit(drops.drop, OWNER)
    wait_for(lambda: bool(airflow.runs), "no purge was started")
    drops.lose_metadata()
    again: Future[requests.Response] = pool.submit(drops.drop, OWNER)
    for headers in STRANGERS.values():
        assert drops.drop(headers).status_code == 401
    assert drops.drop(READER).status_code == 403
    claim = drops.hand.running(drops.task().task_id)
    assert not first.done()
    assert not again.done()
    drops.hand.succeed(claim)
    assert first.result().status_code == 204
    assert again.result().status_code == 204


def test_without_proof_a_purge_that_failed_is_not_restarted(drops: Drops) -> None:
    drops.lose_metadata()
    before = put(drops, "failed")
    refused = drops.drop(OWNER)
    assert refused.status_code == 404, "as the catalog says"
    check_untouched(drops, before, refused)


def test_but_one_that_has_only_the_entry_left_to_drop_is(drops: Drops) -> None:
    drops.lose_metadata()
    drops.end_with(FAILED, root={"deleted": True, "done": True})
    assert drops.drop(READER).status_code == 403
    assert drops.drop({}).status_code == 401
    assert drops.task().status is Status.FAILURE
    assert drops.drop(OWNER).status_code == 204
    assert drops.task().status is Status.SUBMITTED


def test_a_cancelled_one_is_not(drops: Drops) -> None:
    drops.lose_metadata()
    before = drops.end_with(Cancelled(), root={"deleted": True, "done": True})
    refused = drops.drop(OWNER)
    assert refused.status_code == 409
    assert str(before.task_id) in error_of(refused)["message"]
    assert drops.task().version == before.version
