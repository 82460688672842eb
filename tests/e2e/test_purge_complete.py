"""That a purge finds every file of a table, whatever the table has been through.

What must be found is read off the disk: a table without orphans owns every file in its folders.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moraine.tasks.model import Status, Task
from support.damaged_tables import DAMAGED, Damage, append_thrice
from support.platform import Platform
from support.tables import Crafted, Workshop, kinds_on_disk, local
from support.whole_tables import ROWS, WHOLE, Make


def cut_off(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])


def overwrite(file: Path) -> None:
    file.write_bytes(b"none of Avro's " * 400)


@dataclass(frozen=True)
class Purged:
    """A table before its purge and after."""

    table: Crafted
    damage: Damage
    files: set[str]
    kinds: dict[str, dict[str, int]]
    task: Task

    @property
    def result(self) -> dict[str, Any]:
        assert self.task.status is Status.SUCCESS, (self.task.error_code, self.task.result_summary)
        assert self.task.result is not None
        return self.task.result


class Purges:
    """All of them, four at a time, beside a table that none of them may touch."""

    def __init__(self, platform: Platform) -> None:
        self.at = Workshop(platform, "complete")
        # Its name begins like that of another, and so does its folder.
        self.beside = self.at.table("write_format_1x")
        self.at.insert(self.beside, ROWS)
        self.neighbours = self.beside.files()
        with ThreadPoolExecutor(4) as pool:
            self._purged = {make: pool.submit(self._purge, make) for make in (*WHOLE, *DAMAGED)}

    def of(self, make: Callable[..., Any]) -> Purged:
        return self._purged[make].result()

    def _purge(self, make: Callable[[Workshop, str], Any]) -> Purged:
        made = make(self.at, make.__name__)
        table, damage = made if isinstance(made, tuple) else (made, Damage())
        kinds = kinds_on_disk(table, self.at.load(table).metadata_location)
        return Purged(table, damage, set(table.files()), kinds, self.at.purge(table))


@pytest.fixture(scope="module")
def purges(running_platform: Platform) -> Purges:
    return Purges(running_platform)


def _name(make: Callable[..., Any]) -> str:
    return make.__name__.removeprefix("write_")


@pytest.mark.parametrize("make", WHOLE, ids=_name)
def test_purge_finds_every_file_and_leaves_none(purges: Purges, make: Make) -> None:
    purged = purges.of(make)
    result = purged.result
    assert purges.at.platform.inventory(result["inventory"]) == purged.files
    assert purged.table.leftovers() == []
    assert result["by_kind"] == purged.kinds
    assert {kind: purged.kinds[kind]["files"] for kind in WHOLE[make]} == WHOLE[make]
    assert result["files_deleted"] == result["files_found"] == len(purged.files)
    total = sum(kind["bytes"] for kind in purged.kinds.values())
    assert result["bytes_deleted"] == result["bytes_found"] == total
    assert (result["files_left"], result["files_already_missing"]) == (0, 0)
    assert "missing_metadata" not in result


@pytest.mark.parametrize("make", DAMAGED, ids=_name)
def test_purge_deletes_known_files_and_reports_missing_metadata(
    purges: Purges, make: Callable[..., Any]
) -> None:
    purged = purges.of(make)
    result, damage = purged.result, purged.damage
    inventory = purges.at.platform.inventory(result["inventory"])
    assert inventory == (purged.files | damage.gone) - damage.unknown
    assert set(purged.table.leftovers()) == damage.unknown
    assert result["files_deleted"] == len(purged.files - damage.unknown)
    assert result["files_already_missing"] == len(damage.gone)
    assert result["files_left"] == 0
    told = result.get("missing_metadata", {"files": 0, "paths": []})
    assert told["files"] == len(damage.unreadable)
    assert set(map(local, told["paths"])) == damage.unreadable
    if damage.unreadable:
        assert "gone before" in str(purged.task.result_summary)


@pytest.mark.parametrize("harm", [cut_off, overwrite])
@pytest.mark.parametrize("what", ["manifest", "manifest_list"])
def test_purge_names_damaged_metadata_and_deletes_nothing(
    purges: Purges, harm: Callable[[Path], None], what: str
) -> None:
    """Unlike what is gone, it may be restored; so the purge ends, and can be retried."""
    at = purges.at
    table, manifests, _ = append_thrice(at, f"{harm.__name__}_{what}", "2")
    [first, *_] = at.load(table).metadata["snapshots"]
    file = Path(manifests[1] if what == "manifest" else local(first["manifest-list"]))
    harm(file)
    before = table.files()
    task = at.purge(table)
    assert (task.status, task.error_code) == (Status.FAILURE, "METADATA_DAMAGED")
    assert file.name in str(task.result_summary)
    assert table.files() == before


def test_purge_leaves_the_table_beside_untouched(purges: Purges) -> None:
    assert purges.beside.files() == purges.neighbours
    assert purges.at.count(purges.beside) == 60
