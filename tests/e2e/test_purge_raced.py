"""A purge against writers and lost answers: what it says it did is what it did."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from moraine.catalog.client import RestCatalog
from moraine.client.delegation import ApiError
from moraine.drops.tombstones import TombstoneStore
from moraine.errors import (
    CatalogRefused,
    CatalogUnavailable,
    SparkUnavailable,
    TaskConflict,
)
from moraine.operations.purge.job import Executors
from moraine.operations.purge.model import Checkpoint, Phase
from moraine.operations.purge.target import PurgeTarget
from moraine.tasks.model import Status
from support.platform import Platform
from support.tables import Crafted, PurgeAttempt, Workshop, local

ROWS = "SELECT id, 'x' FROM range(0, 10, 1, 1)"
AFTER = [Phase.CONTENT, Phase.MANIFESTS, Phase.MANIFEST_LISTS]


@pytest.fixture(scope="module")
def at(running_platform: Platform) -> Workshop:
    return Workshop(running_platform, "raced")


def filled(at: Workshop, name: str) -> Crafted:
    table = at.table(name)
    at.insert(table, ROWS)
    at.insert(table, ROWS)
    return table


def planned(at: Workshop, table: Crafted, **parameters: Any) -> PurgeAttempt:
    attempt = at.attempt(table, **parameters)
    assert all(map(attempt.take, ["acquire", "plan"]))
    return attempt


# --- A writer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", AFTER)
def test_purge_ends_before_the_next_phase_after_a_commit(
    at: Workshop, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    table = filled(at, f"during_{phase}")
    attempt = planned(at, table)
    delete_phase = Executors.delete_phase

    def commit_afterwards(executors: Executors, current: Phase, *more: Any) -> Any:
        outcomes = delete_phase(executors, current, *more)
        if current is phase:
            at.set_properties(table, touched=str(uuid4()))
        return outcomes

    monkeypatch.setattr(Executors, "delete_phase", commit_afterwards)
    before = set(table.files())

    assert not attempt.take("delete")

    task = attempt.task
    assert (task.status, task.error_code) == (Status.FAILURE, "TABLE_CHANGED")
    gone = before - set(table.files())
    done = [one for one in Phase if list(Phase).index(one) <= list(Phase).index(phase)]
    words = str(task.result_summary)
    assert f"{len(gone)} of {len(before)} files were deleted" in words
    untouched = words.partition("untouched: ")[2]
    assert [one for one in Phase if one in untouched.split(".")[0].split(", ")] == [
        one for one in Phase if one not in done and one in Checkpoint.of(task).planned.phases
    ]
    assert (task.result or {})["files_deleted"] == len(gone)
    assert local(at.load(table).metadata_location) in table.files()
    # A new purge of what is left ends well.
    monkeypatch.undo()
    assert at.purge(table).status is Status.SUCCESS
    assert table.leftovers() == []


def test_purge_answer_tells_what_was_deleted_before_the_table_changed(platform: Platform) -> None:
    table = platform.write_table()
    before = table.files()
    platform.failpoints.hold_at("purge.delete.manifests.before")
    caller = platform.executing(table)
    platform.failpoints.wait_until_hit("purge.delete.manifests.before")
    gone = set(before) - set(table.files())
    assert gone
    platform.spark.sql(f"ALTER TABLE {table.subject} SET TBLPROPERTIES ('touched' = 'yes')")
    left = table.files()
    platform.failpoints.release("purge.delete.manifests.before")

    error = caller.exception(timeout=120)

    assert isinstance(error, ApiError)
    assert (error.status, error.body["error_code"]) == (409, "TABLE_CHANGED")
    assert f"{len(gone)} of {len(before)} files were deleted" in error.body["message"]
    assert table.files() == left


# --- What undrop goes by ------------------------------------------------------------------------


def test_purge_that_began_to_delete_cannot_be_called_off(
    at: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was interrupted before it could count a file, and its slices are forgotten."""
    table = filled(at, "begun")
    service = at.platform.service
    store = TombstoneStore(service.store.pool, service.settings.realm)
    attempt = planned(at, table)
    assert store.add("demo", (at.namespace,), table.name, "", attempt.task_id)

    def break_off(*_: Any) -> Any:
        raise SparkUnavailable()

    monkeypatch.setattr(Executors, "delete_phase", break_off)
    assert not attempt.take("delete")
    assert service.store.slice_totals(attempt.task_id) == {}
    service.cancel(attempt.task_id)
    with pytest.raises(TaskConflict, match="has begun to delete"):
        store.lift(attempt.task_id, service.store)
    store.remove(attempt.task_id)


def test_purge_that_only_planned_can_be_called_off(at: Workshop) -> None:
    table = filled(at, "planned")
    service = at.platform.service
    store = TombstoneStore(service.store.pool, service.settings.realm)
    attempt = planned(at, table)
    assert store.add("demo", (at.namespace,), table.name, "", attempt.task_id)
    service.cancel(attempt.task_id)
    assert not attempt.take("delete")
    assert attempt.task.error_code == "CANCELLED"
    assert store.lift(attempt.task_id, service.store).table_name == table.name
    assert at.count(table) == 20


# --- The end of a drop --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        CatalogUnavailable("The catalog answered 429: slow down"),
        CatalogUnavailable("The catalog answered 503: later"),
        CatalogRefused("The catalog answered 403: no"),
    ],
    ids=["throttled", "away", "forbidden"],
)
def test_purge_drops_nothing_after_an_unclear_answer_of_the_catalog(
    at: Workshop, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """Meanwhile another table was created under the name of the purged one."""
    name = f"remade_{uuid4().hex[:6]}"
    table = filled(at, name)
    attempt = planned(at, table, properties={"dropTable": "true"})
    assert all(map(attempt.take, ["delete", "verify"]))
    at.forget(table)
    new = at.bare_table(name)
    before = new.files()

    def fail(*_: Any, **__: Any) -> Any:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(RestCatalog, "load_table", fail)
        attempt.take("settle")
    assert attempt.task.status is not Status.SUCCESS
    assert new.files() == before
    assert at.load(new).uuid
    # With a clear answer it ends, and the new table is still there.
    target = PurgeTarget.of(attempt.worker, attempt.task)
    assert not target.is_in_catalog(RestCatalog(at.platform.settings.catalogs["demo"]))


# --- A lost answer ------------------------------------------------------------------------------


def same_again(at: Workshop, table: Crafted) -> None:
    del at, table


def gone_from_the_catalog(at: Workshop, table: Crafted) -> None:
    at.forget(table)


@pytest.mark.parametrize("since", [same_again, gone_from_the_catalog])
def test_purge_that_is_requested_again_is_answered_with_its_success(
    at: Workshop, since: Callable[[Workshop, Crafted], None]
) -> None:
    table = filled(at, f"again_{since.__name__}")
    uuid = at.load(table).uuid
    first = at.purge(table)
    assert first.status is Status.SUCCESS
    since(at, table)
    for parameters in ({}, {"metadata": {"table-uuid": uuid}}):
        again = at.purge(table, **parameters)
        assert again.status is Status.SUCCESS, again.result_summary
        result = again.result or {}
        assert result["files_deleted"] == (first.result or {})["files_deleted"]
        assert UUID(result["purged_by"]) == first.task_id
        assert str(first.task_id) in str(again.result_summary)
    code = "TABLE_METADATA_MISSING" if since is same_again else "TABLE_NOT_FOUND"
    another: dict[str, Any] = {"metadata": {"table-uuid": str(uuid4())}}
    for parameters in (another, {"properties": {"dryRun": "true"}}):
        other = at.purge(table, **parameters)
        assert (other.status, other.error_code) == (Status.FAILURE, code)


def test_purge_does_not_take_a_new_table_of_the_same_name_for_purged(at: Workshop) -> None:
    """Its own metadata file is lost; that it was purged before must not hide that."""
    table = filled(at, "made_again")
    assert at.purge(table).status is Status.SUCCESS
    at.forget(table)
    again = at.bare_table("made_again")
    Path(local(at.load(again).metadata_location)).unlink()
    task = at.purge(again)
    assert (task.status, task.error_code) == (Status.FAILURE, "TABLE_METADATA_MISSING")


def test_purge_that_is_requested_again_can_drop_the_table(at: Workshop) -> None:
    table = filled(at, "again_and_drop")
    assert at.purge(table).status is Status.SUCCESS
    again = at.purge(table, properties={"dropTable": "true"})
    assert again.status is Status.SUCCESS, again.result_summary
    assert table.name not in list(at.platform.catalog.list_tables([at.namespace]))


def test_purge_over_http_is_answered_again_without_a_key(platform: Platform) -> None:
    table = platform.write_table()
    first = platform.post(platform.payload(table))
    assert not isinstance(first, ApiError), first.body
    again = platform.post(platform.payload(table))
    assert not isinstance(again, ApiError), again.body
    assert again["status"] == "COMPLETED_SUCCESS"
    assert again["execution_result"]["files_deleted"] == first["execution_result"]["files_deleted"]


def test_purge_distinguishes_missing_metadata_from_a_missing_table(at: Workshop) -> None:
    table = at.bare_table("damaged")
    Path(local(at.load(table).metadata_location)).unlink()
    task = at.purge(table)
    assert (task.status, task.error_code) == (Status.FAILURE, "TABLE_METADATA_MISSING")
    assert re.search("metadata file is gone", str(task.result_summary))
    assert "input stream" not in str(task.result_summary)
