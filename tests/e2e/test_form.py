"""A purge that is started manually: the Dag's form, as Airflow's UI sends it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from moraine.tasks.model import Status, TaskFilter
from support.platform import CATALOG, NAMESPACE, Platform, Table


def form(table: Table, **fields: Any) -> dict[str, Any]:
    return {"catalog": CATALOG, "namespace": NAMESPACE, "table": table.name, **fields}


def test_purge_form_makes_a_dry_run_unless_it_is_switched_off(platform: Platform) -> None:
    table = platform.write_table()
    before = table.files()

    run = platform.finished_run(platform.trigger("table_purge", form(table)))
    assert run["state"] == "success"
    assert f"Dry run: {len(before)} files would be deleted." in run["note"]
    assert table.files() == before

    run = platform.finished_run(platform.trigger("table_purge", form(table, dry_run=False)))
    assert run["state"] == "success"
    assert run["note"] == (
        f"{table.subject}: COMPLETED_SUCCESS. {len(before)} files deleted, none is left."
    )
    assert table.files() == {}
    task = platform.task_of(table)
    assert (task.status, task.lease_owner) == (Status.SUCCESS, run["dag_run_id"])
    assert task.principal == "airflow admin"


WRONG: dict[str, dict[str, Any]] = {
    "The form is not filled in: table_identity.namespace_levels.1": {"namespace": "shop."},
    "Moraine has no trash": {"properties": {"skipTrash": "false"}},
    "unknown properties skipTash": {"properties": {"skipTash": "true"}},
    "'orders' is no task id": {"task_id": "orders"},
}


@pytest.mark.parametrize("field", ["catalog", "namespace", "table"])
@pytest.mark.parametrize("value", ["", None])
def test_purge_form_refuses_an_empty_name(
    platform: Platform, field: str, value: str | None
) -> None:
    names = {"catalog": CATALOG, "namespace": NAMESPACE, "table": "orders", field: value}
    answer = platform.airflow.request(
        "POST", "/api/v2/dags/table_purge/dagRuns", json={"logical_date": None, "conf": names}
    )
    assert answer.status_code == 400
    assert f"Invalid input for param {field}" in answer.text


def test_purge_form_cannot_be_sent_before_it_is_filled(platform: Platform) -> None:
    """The UI requires a field that is not nullable and has no default."""
    params = platform.get("dags/table_purge/details")["params"]
    for field in ("catalog", "namespace", "table"):
        assert params[field]["value"] is None
        assert (params[field]["schema"]["type"], params[field]["schema"]["minLength"]) == (
            "string",
            1,
        )


def test_purge_form_that_is_wrong_fails_the_run_and_writes_nothing(platform: Platform) -> None:
    newest = platform.service.store.find(TaskFilter(), limit=1)
    runs = {
        words: platform.trigger("table_purge", form(platform.new_table(), **fields))
        for words, fields in WRONG.items()
    }
    for words, run_id in runs.items():
        assert platform.finished_run(run_id)["state"] == "failed"
        log = platform.log_of(run_id, "admit")
        assert words in log
        assert "VALIDATION_FAILED: " in log
    assert platform.service.store.find(TaskFilter(), limit=1) == newest


def test_dag_run_that_is_the_second_for_a_task_ends_at_once(platform: Platform) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.plan.before")
    task_id = platform.submit(table)
    platform.failpoints.wait_until_hit("purge.plan.before")
    history = platform.history(task_id)

    second = platform.trigger("table_purge", form(table, task_id=str(task_id)))

    platform.finished_run(second)
    states = platform.task_states(second)
    assert states.pop("admit") == "success"
    assert set(states.values()) == {"skipped"}
    assert re.search("leased by another run", platform.log_of(second, "acquire"))
    assert platform.history(task_id) == history
    platform.failpoints.release("purge.plan.before")
    assert platform.finish(task_id).attempt_count == 1
    assert table.files() == {}
