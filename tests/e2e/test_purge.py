"""A purge over HTTP: what the caller gets, and what is on disk before and after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from moraine.client.delegation import ApiError
from moraine.local.demo import write_orders
from moraine.tasks.model import Status
from support.platform import CATALOG, NAMESPACE, Platform, Table, size_of

LIFE = [
    (1, Status.SUBMITTED, 0, "submitted"),
    (2, Status.ACQUIRING_RESOURCES, 1, "claimed"),
    (3, Status.RUNNING, 1, "started"),
    (4, Status.SUCCESS, 1, "succeeded"),
]


def life_of(platform: Platform, task_id: str) -> list[tuple[int, Status, int, str]]:
    rows = platform.history(task_id)
    return [(row.version, row.status, row.attempt_count, row.reason) for row in rows]


def test_purge_of_a_table_with_snapshots_and_row_level_deletes_is_synchronous(
    platform: Platform,
) -> None:
    table, beside = platform.new_table(), platform.write_table()
    write_orders(platform.spark, table.subject)
    before, size, others = table.files(), size_of(table.folder), beside.files()

    answer = platform.execute(table)

    task_id = answer["delegation_task_id"]
    result = answer["execution_result"]
    assert answer["status"] == "COMPLETED_SUCCESS"
    assert answer["message"] == f"{len(before)} files deleted, none is left."
    assert (result["files_deleted"], result["bytes_deleted"]) == (len(before), size)
    assert (result["files_found"], result["files_already_missing"]) == (len(before), 0)
    assert result["by_kind"]["position_deletes"]["files"] > 0
    assert sum(kind["files"] for kind in result["by_kind"].values()) == len(before)
    assert platform.inventory(result["inventory"]) == set(before)
    assert table.files() == {}

    assert beside.files() == others
    assert platform.spark.table(beside.subject).count() == 99

    assert life_of(platform, task_id) == LIFE
    (run,) = platform.runs_of(task_id)
    assert platform.finished_run(run["dag_run_id"])["state"] == "success"
    assert platform.run(run["dag_run_id"])["note"] == (
        f"{table.subject}: COMPLETED_SUCCESS. {answer['message']}"
    )
    assert set(platform.task_states(run["dag_run_id"]).values()) == {"success"}


def test_purge_can_be_asynchronous_with_status_and_events(platform: Platform) -> None:
    table = platform.write_table()
    files = len(table.files())

    answer = platform.client.call("POST", "/v1/tasks", json=platform.payload(table))

    task_id = answer["delegation_task_id"]
    assert answer["status"] == "QUEUED"
    assert answer["status_query_url"].endswith(f"/v1/tasks/{task_id}")
    events = list(platform.client.events(task_id))
    states = [data["status"] for event, data in events if event == "state"]
    assert states == ["QUEUED", "ACQUIRING_RESOURCES", "RUNNING", "COMPLETED_SUCCESS"]
    progress = [data for event, data in events if event == "progress"]
    assert {"acquire", "plan", "delete", "verify"} >= {data["step"] for data in progress}
    assert (progress[-1]["files_done"], progress[-1]["files_total"]) == (files, files)
    task = platform.client.task(task_id)
    assert task["status"] == "COMPLETED_SUCCESS"
    assert task["execution_result"]["files_deleted"] == files
    assert [row["version"] for row in task["history"]] == [1, 2, 3, 4]
    assert table.files() == {}


def test_purge_dry_run_lists_the_files_and_deletes_none(platform: Platform) -> None:
    table = platform.write_table()
    before = table.files()

    answer = platform.execute(table, properties={"dryRun": "true"})

    result = answer["execution_result"]
    assert answer["message"] == f"Dry run: {len(before)} files would be deleted."
    assert (result["dry_run"], result["files_deleted"], result["bytes_deleted"]) == (True, 0, 0)
    assert (result["files_found"], result["bytes_found"]) == (
        len(before),
        size_of(table.folder),
    )
    assert platform.inventory(result["inventory"]) == set(before)
    assert table.files() == before
    (run,) = platform.runs_of(answer["delegation_task_id"])
    platform.finished_run(run["dag_run_id"])
    states = platform.task_states(run["dag_run_id"])
    assert (states["delete"], states["verify"], states["settle"]) == (
        "skipped",
        "skipped",
        "success",
    )


class Refusals:
    """Every purge that must be refused, asked for at the same time."""

    def __init__(self, platform: Platform) -> None:
        ours = platform.write_table()
        kept = platform.write_table(**{"gc.enabled": "false"})
        sharing = self._sharing(platform)
        self.tables = [ours, kept, sharing]
        self.before = [table.files() for table in self.tables]
        loaded = platform.load(ours)
        older = loaded.metadata["metadata-log"][0]["metadata-file"]
        elsewhere = platform.payload(ours)
        elsewhere["operation_parameters"]["table_identity"]["catalog_name"] = "other"
        asked = {
            "PURGE_FORBIDDEN": platform.payload(kept),
            "TABLE_NOT_FOUND": platform.payload(platform.new_table()),
            "TABLE_CHANGED by uuid": platform.payload(
                ours, metadata={"table-uuid": "00000000-0000-4000-8000-000000000000"}
            ),
            "CATALOG_NOT_CONFIGURED": elsewhere,
            "PATH_OUTSIDE_TABLE": platform.payload(sharing),
        }
        with ThreadPoolExecutor() as pool:
            futures = {name: pool.submit(platform.post, body) for name, body in asked.items()}
            self.answers = {name: future.result() for name, future in futures.items()}
        # A table has at most one live purge, so this one has to come after the other.
        changed = platform.payload(ours, metadata_location=older)
        self.answers["TABLE_CHANGED by location"] = platform.post(changed)

    def _sharing(self, platform: Platform) -> Table:
        """A table with a data file that lies outside its folder, as `add_files` leaves it."""
        table = platform.write_table()
        folder = platform.stack.home / "elsewhere" / table.name
        folder.mkdir(parents=True)
        rows = pa.table({"id": pa.array([1], pa.int64()), "double": pa.array([2], pa.int64())})
        pyarrow.parquet.write_table(rows, folder / "shared.parquet")
        platform.spark.sql(
            f"CALL {CATALOG}.system.add_files(table => '{NAMESPACE}.{table.name}', "
            f"source_table => '`parquet`.`{folder}`')"
        ).collect()
        self.outsider = folder / "shared.parquet"
        return table


@pytest.fixture(scope="module")
def refusals(running_platform: Platform) -> Refusals:
    return Refusals(running_platform)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PURGE_FORBIDDEN", "gc.enabled=false"),
        ("TABLE_NOT_FOUND", "The catalog has no such table."),
        ("TABLE_CHANGED by uuid", "table-uuid"),
        ("TABLE_CHANGED by location", "metadata_location"),
        ("CATALOG_NOT_CONFIGURED", "No catalog 'other' is configured here; known are demo"),
        ("PATH_OUTSIDE_TABLE", "1 file lies outside the table's locations"),
    ],
)
def test_purge_refuses_what_must_not_be_purged(refusals: Refusals, name: str, words: str) -> None:
    error = refusals.answers[name]
    assert isinstance(error, ApiError)
    assert (error.status, error.body["error_code"]) == (409, name.split()[0])
    assert error.body["status"] == "FAILED_TERMINAL"
    assert error.body["delegation_task_id"]
    assert words in error.body["message"]


def test_purge_that_is_refused_deletes_nothing_and_is_not_retried(
    platform: Platform, refusals: Refusals
) -> None:
    assert [table.files() for table in refusals.tables] == refusals.before
    assert refusals.outsider.exists()
    for answer in refusals.answers.values():
        assert isinstance(answer, ApiError)
        task = platform.task(answer.body["delegation_task_id"])
        assert (task.status, task.attempt_count) == (Status.FAILURE, 1)
        assert task.reason == "given up: the error is final"


def test_purge_of_four_tables_at_once(platform: Platform) -> None:
    tables = [platform.write_table() for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        answers: list[dict[str, Any]] = list(pool.map(platform.execute, tables))
    assert {answer["status"] for answer in answers} == {"COMPLETED_SUCCESS"}
    assert [table.files() for table in tables] == [{}] * 4
    for answer in answers:
        assert life_of(platform, answer["delegation_task_id"]) == LIFE


def test_purge_that_is_cancelled_while_it_deletes_can_be_retried(platform: Platform) -> None:
    table = platform.write_table()
    before = table.files()
    platform.failpoints.hold_at("purge.delete.content.before")
    caller = platform.executing(table)
    platform.failpoints.wait_until_hit("purge.delete.content.before")
    task_id = str(platform.task_of(table).task_id)

    # A purge that is to drop the table as well has to wait, and is told for which.
    second = platform.post(platform.payload(table, properties={"dropTable": "true"}))
    assert isinstance(second, ApiError)
    assert (second.status, second.body["error_code"]) == (409, "TASK_ALREADY_IN_PROGRESS")
    assert second.body["delegation_task_id"] == task_id

    asked = platform.client.call("POST", f"/v1/tasks/{task_id}/cancel")
    assert asked["status"] == "RUNNING"
    assert asked["cancel_requested_ts"]
    platform.wait_until_noticed(task_id)
    platform.failpoints.release("purge.delete.content.before")
    error = caller.exception(timeout=60)
    assert isinstance(error, ApiError)
    assert (error.status, error.body["error_code"]) == (409, "CANCELLED")
    assert table.files() == before
    assert life_of(platform, task_id)[-1] == (4, Status.FAILURE, 1, "cancelled")

    platform.client.call("POST", f"/v1/tasks/{task_id}/retry")
    assert platform.finish(task_id).status is Status.SUCCESS
    assert table.files() == {}
    assert life_of(platform, task_id)[4:] == [
        (5, Status.SUBMITTED, 0, "re-driven on request"),
        (6, Status.ACQUIRING_RESOURCES, 1, "claimed"),
        (7, Status.RUNNING, 1, "started"),
        (8, Status.SUCCESS, 1, "succeeded"),
    ]
