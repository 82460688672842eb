"""Tables whose writers try to have foreign files deleted, or to stop the purges of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from moraine.client.delegation import ApiError
from moraine.operations.purge.model import Checkpoint
from moraine.settings import Settings
from moraine.tasks.model import Status, Task
from support.platform import Platform, checksums
from support.tables import Crafted, Workshop, local

ROWS = "SELECT id, 'x' FROM range(0, 10, 1, 1)"
PATHS = ["write.data.path", "write.object-storage.path", "write.folder-storage.path"]


@pytest.fixture(scope="module")
def finance(running_platform: Platform) -> Workshop:
    return Workshop(running_platform, "finance")


@pytest.fixture
def attacker(platform: Platform) -> Iterator[Workshop]:
    """What it leaves behind would cost the purges of other tests a look."""
    at = Workshop(platform, "attacker")
    yield at
    for name in list(platform.catalog.list_tables([at.namespace])):
        platform.catalog.drop_table([at.namespace], name)


@pytest.fixture(scope="module")
def ledger(finance: Workshop) -> Crafted:
    """The table that all of this is about; nothing may ever happen to it."""
    table = finance.table("ledger")
    finance.insert(table, ROWS)
    finance.insert(table, ROWS)
    return table


@pytest.fixture(autouse=True)
def _ledger_is_whole(finance: Workshop, ledger: Crafted) -> Iterator[None]:
    before = ledger.files()
    yield
    assert ledger.files() == before
    assert finance.count(ledger) == 20


def hostile_table(at: Workshop, *files: str, name: str = "evil") -> Crafted:
    """A table that names foreign files among its own."""
    table = at.table(name)
    at.insert(table, ROWS)
    at.forge(table, list(files))
    return table


def data_files(table: Crafted) -> list[str]:
    return [path for path in table.files() if "/data/" in path]


def check_refused(task: Task, codes: str, table: Crafted, before: dict[str, str]) -> None:
    assert task.status is Status.FAILURE, task.result
    assert re.fullmatch(codes, str(task.error_code)), (task.error_code, task.result_summary)
    assert "nothing was deleted" in str(task.result_summary)
    assert table.files() == before


@pytest.mark.parametrize("name", PATHS)
def test_purge_is_not_widened_by_a_write_path_outside_the_warehouse(
    attacker: Workshop, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("not a table's")
    table = hostile_table(attacker, f"file:{precious}")
    for place in (f"file://{tmp_path}", "file:///", f"{tmp_path}"):
        attacker.set_properties(table, **{name: place})
        before = table.files()
        check_refused(attacker.purge(table), "PATH_OUTSIDE_TABLE", table, before)
    assert precious.exists()


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("where", ["table", "namespace", "warehouse"])
def test_purge_with_a_write_path_into_another_table_deletes_none_of_its_files(
    attacker: Workshop, ledger: Crafted, platform: Platform, name: str, where: str
) -> None:
    place = {
        "table": ledger.folder,
        "namespace": ledger.folder.parent,
        "warehouse": platform.warehouse,
    }[where]
    table = hostile_table(attacker, *(f"file:{path}" for path in data_files(ledger)))
    attacker.set_properties(table, **{name: f"file:{place}"})
    before = table.files()
    codes = "PATH_OUTSIDE_TABLE" if where == "warehouse" else "LOCATION_SHARED"
    check_refused(attacker.purge(table), codes, table, before)


@pytest.mark.parametrize("where", ["table", "below", "namespace", "warehouse", "disk"])
def test_purge_of_a_table_whose_location_was_moved_onto_another(
    attacker: Workshop, ledger: Crafted, platform: Platform, where: str
) -> None:
    place = {
        "table": ledger.folder,
        "below": ledger.folder / "data",
        "namespace": ledger.folder.parent,
        "warehouse": platform.warehouse,
        "disk": "/",
    }[where]
    old = attacker.folder / "evil"
    table = hostile_table(attacker, *(f"file:{path}" for path in data_files(ledger)))
    elsewhere = attacker.folder / "metadata"
    attacker.commit(
        table,
        {"action": "set-properties", "updates": {"write.metadata.path": f"file:{elsewhere}"}},
        {"action": "set-location", "location": f"file:{place}"},
    )
    before = checksums(old)
    task = attacker.purge(table)
    assert task.status is Status.FAILURE
    assert task.error_code in (
        ("LOCATION_NOT_ALLOWED",)
        if where in ("warehouse", "disk")
        else ("LOCATION_SHARED", "PATH_OUTSIDE_TABLE")
    ), task.result_summary
    assert checksums(old) == before


def test_purge_of_a_copy_that_is_registered_in_another_namespace(
    attacker: Workshop, finance: Workshop, ledger: Crafted, platform: Platform
) -> None:
    metadata = Path(local(finance.load(ledger).metadata_location))
    clone = attacker.register("clone", metadata)
    before = clone.files()
    try:
        task = attacker.purge(clone)
        check_refused(task, "LOCATION_SHARED", clone, before)
        assert f"{finance.namespace}.ledger names" in str(task.result_extended)
        answer = platform.post(attacker.payload(clone))
        assert isinstance(answer, ApiError)
        assert (answer.status, answer.body["error_code"]) == (409, "LOCATION_SHARED")
        gateway = f"{platform.stack.airflow.url}/catalog/demo/v1/namespaces"
        response = requests.delete(
            f"{gateway}/{clone.namespace}/tables/clone?purgeRequested=true", timeout=120
        )
        assert response.status_code == 409, response.text
    finally:
        attacker.forget(clone)


def test_purge_spares_files_that_another_table_added(
    attacker: Workshop, platform: Platform
) -> None:
    """The other table lies elsewhere; only its manifests tell that it needs them."""
    source, adopter = attacker.table("source"), Workshop(platform, "adopter")
    attacker.insert(source, ROWS)
    table = adopter.table("t")
    adopter.insert(table, ROWS)
    # The index knows the table before it takes the files.
    assert attacker.purge(source, properties={"dryRun": "true"}).status is Status.SUCCESS
    adopter.call("add_files", table, source_table=f"'`parquet`.`{source.folder}/data`'")
    before = source.files()

    task = attacker.purge(source)

    check_refused(task, "LOCATION_SHARED", source, before)
    assert f"{adopter.namespace}.t names 1 of them" in str(task.result_summary)
    assert adopter.count(table) == 20
    adopter.forget(table)
    assert attacker.purge(source).status is Status.SUCCESS
    assert source.leftovers() == []


@pytest.mark.parametrize("where", ["warehouse", "namespace"])
def test_purge_is_not_stopped_by_another_table_with_a_wide_location(
    attacker: Workshop, platform: Platform, where: str
) -> None:
    innocent = Workshop(platform, "innocent")
    table, other = innocent.table("t"), innocent.table("u")
    innocent.insert(table, ROWS)
    innocent.insert(other, ROWS)
    place = platform.warehouse if where == "warehouse" else innocent.folder
    wide = hostile_table(attacker, f"file:{attacker.folder}/gone.parquet", name="wide")
    attacker.commit(
        wide,
        {
            "action": "set-properties",
            "updates": {
                "write.metadata.path": f"file:{attacker.folder}/metadata",
                "write.data.path": f"file:{place}",
            },
        },
        {"action": "set-location", "location": f"file:{place}"},
    )
    try:
        task = innocent.purge(table)
        assert task.status is Status.SUCCESS, task.result_summary
        assert table.leftovers() == []
        assert innocent.count(other) == 10
    finally:
        attacker.forget(wide)


def test_purge_is_not_stopped_by_another_table_that_cannot_be_read(attacker: Workshop) -> None:
    dead, table = attacker.bare_table("dead"), attacker.bare_table("t")
    Path(local(attacker.load(dead).metadata_location)).unlink()
    assert attacker.purge(table).status is Status.SUCCESS


def test_purge_allows_no_location_by_default(attacker: Workshop, platform: Platform) -> None:
    """The embedded catalog reports no warehouse, and would not be believed about a disk."""
    table = attacker.bare_table("t")
    before = table.files()
    unset = platform.settings.catalogs["demo"].model_copy(update={"allowed_locations": []})
    attempt = attacker.attempt(table)
    settings: Settings = attempt.worker.settings.model_copy(update={"catalogs": {"demo": unset}})
    object.__setattr__(attempt.worker, "settings", settings)
    assert not attempt.take("acquire")
    check_refused(attempt.task, "LOCATION_NOT_ALLOWED", table, before)
    assert "catalogs.demo.allowed-locations" in str(attempt.task.result_summary)


def test_purge_with_a_tampered_inventory_deletes_nothing_outside(
    attacker: Workshop, ledger: Crafted, platform: Platform
) -> None:
    """Others may write to the workspace, so the inventory is compared with the ledger's digest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = attacker.table("t")
    attacker.insert(table, ROWS)
    attempt = attacker.attempt(table)
    assert all(map(attempt.take, ["acquire", "plan"]))
    inventory = local(Checkpoint.of(attempt.task).planned.location)
    [slice_file] = Path(inventory, "phase=content").glob("*.parquet")
    rows: Any = pq.read_table(slice_file, partitioning=None)
    added = rows.slice(0, 1).to_pylist()[0] | {"path": f"file:{data_files(ledger)[0]}"}
    pq.write_table(pa.concat_tables([rows, pa.Table.from_pylist([added], rows.schema)]), slice_file)

    assert not attempt.take("delete")

    assert attempt.task.error_code == "INVENTORY_CHANGED"
