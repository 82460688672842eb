"""`moraine` against a running platform, as a person or a script uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.platform import CATALOG, NAMESPACE, Platform, Table

MORAINE = Path(sys.executable).with_name("moraine")


def moraine(platform: Platform, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MORAINE), *words],
        env=platform.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def answer(platform: Platform, *words: str) -> Any:
    done = moraine(platform, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def name_of(table: Table) -> str:
    return f"{NAMESPACE}.{table.name}"


def test_cli_purges_a_table_and_shows_the_task(platform: Platform) -> None:
    table = platform.write_table()
    files = table.files()

    planned = answer(platform, "purge", CATALOG, name_of(table), "--dry-run")
    assert planned["status"] == "COMPLETED_SUCCESS"
    assert planned["execution_result"]["files_found"] == len(files)
    assert table.files() == files

    shown = moraine(platform, "purge", CATALOG, name_of(table), "--wait")
    assert shown.returncode == 0, shown.stderr
    assert f"{len(files)} files deleted, none is left." in shown.stdout
    assert table.files() == {}

    purged, planned_too = answer(platform, "tasks", "list", "--table", table.subject)["tasks"]
    assert planned_too["delegation_task_id"] == planned["delegation_task_id"]
    task = answer(platform, "tasks", "show", purged["delegation_task_id"])
    assert [row["version"] for row in task["history"]] == [1, 2, 3, 4]


def test_cli_pipes_whole_output(platform: Platform) -> None:
    table = platform.write_table()
    planned = answer(platform, "purge", CATALOG, name_of(table), "--dry-run")
    task_id, result = planned["delegation_task_id"], planned["execution_result"]
    listed = moraine(platform, "tasks", "list", "--table", table.subject).stdout
    (row,) = (line for line in listed.splitlines() if task_id in line)
    assert planned["result_summary"] in row
    shown = moraine(platform, "tasks", "show", task_id).stdout.splitlines()
    assert f"Every file by name: {result['inventory']}" in shown


def test_cli_cancels_and_retries_a_task(platform: Platform) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.plan.before")
    task_id = answer(platform, "purge", CATALOG, name_of(table))["delegation_task_id"]
    platform.failpoints.wait_until_hit("purge.plan.before")
    assert answer(platform, "tasks", "cancel", task_id)["cancel_requested_ts"]
    platform.wait_until_noticed(task_id)
    platform.failpoints.release("purge.plan.before")
    assert platform.finish(task_id).error_code == "CANCELLED"
    assert answer(platform, "tasks", "retry", task_id)["status"] == "QUEUED"
    platform.finish(task_id)
    assert table.files() == {}


def test_cli_errors_are_one_sentence(platform: Platform) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    table = platform.new_table()
    for words, sentence in {
        ("tasks", "show", unknown): f"TASK_NOT_FOUND: There is no task {unknown}.",
        ("tasks", "retry", "orders"): "VALIDATION_FAILED",
    }.items():
        done = moraine(platform, *words)
        assert done.returncode == 1
        assert done.stdout == ""
        assert " ".join(done.stderr.split()).startswith(sentence)
        assert "Traceback" not in done.stderr
    failed = moraine(platform, "purge", CATALOG, name_of(table), "--wait")
    assert failed.returncode == 1
    assert "The catalog has no such table" in failed.stdout
