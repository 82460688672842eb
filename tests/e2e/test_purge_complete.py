"""That a purge finds every file of a table, whatever the table has been through.

What must be found is read off the disk: a table without orphans owns every file in its folders.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moraine.tasks.model import Status, Task
from support.platform import Platform, checksums
from support.tables import (
    MERGE_ON_READ,
    Crafted,
    Workshop,
    current_snapshot,
    kinds_on_disk,
    local,
    read_avro,
)

Make = Callable[[Workshop, str], Crafted]

ROWS = "SELECT id, concat('a ', id % 3) FROM range(0, 60, 1, 1)"
MORE = "SELECT id, concat('b ', id % 2) FROM range(60, 80, 1, 1)"
ODD = "100% of #1 + ü %2F %20x"
LONG_CHAIN = 130


# --- Tables that are whole --------------------------------------------------------------------


def write_format_1(at: Workshop, name: str) -> Crafted:
    """Rows are deleted by writing files anew: a later snapshot drops what the first one holds."""
    table = at.table(name, partitioned="part", **{"format-version": "1"})
    at.insert(table, ROWS)
    at.sql(f"DELETE FROM {table.subject} WHERE id % 7 = 0")
    return table


def write_manifests_in_the_snapshot(at: Workshop, name: str) -> Crafted:
    """Format 1 once had no manifest lists."""
    table = write_format_1(at, name)
    file = Path(local(at.load(table).metadata_location))
    metadata = json.loads(file.read_text())
    for snapshot in metadata["snapshots"]:
        listed = Path(local(snapshot.pop("manifest-list")))
        snapshot["manifests"] = [row["manifest_path"] for row in read_avro(str(listed)).rows]
        listed.unlink()
    file.write_text(json.dumps(metadata))
    at.forget(table)
    again = at.register(name, file)
    assert at.count(again) == 51
    return again


def write_position_deletes(at: Workshop, name: str) -> Crafted:
    """With partitions by three specs in turn, and both kinds of statistics."""
    table = at.table(name, partitioned="part", **{"format-version": "2"}, **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.sql(f"ALTER TABLE {table.subject} ADD PARTITION FIELD bucket(2, id)")
    at.insert(table, MORE)
    at.sql(f"ALTER TABLE {table.subject} DROP PARTITION FIELD part")
    at.sql(f"DELETE FROM {table.subject} WHERE id % 7 = 0")
    at.call("compute_table_stats", table)
    at.call("compute_partition_stats", table)
    return table


def write_equality_deletes(at: Workshop, name: str) -> Crafted:
    table = at.table(name, **{"format-version": "2"}, **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.sql(f"DELETE FROM {table.subject} WHERE id = 3")
    at.delete_by_equality(table, [5, 6])
    assert at.count(table) == 57
    return table


def write_deletion_vectors(at: Workshop, name: str) -> Crafted:
    table = at.table(name, partitioned="part", **{"format-version": "3"}, **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.sql(f"DELETE FROM {table.subject} WHERE id % 7 = 0")
    at.sql(f"DELETE FROM {table.subject} WHERE id % 7 = 1")
    vectors = at.sql(f"SELECT file_path FROM {table.subject}.all_delete_files")
    assert len(vectors) > len(set(vectors)) == 2
    return table


def write_through_all_formats(at: Workshop, name: str) -> Crafted:
    table = at.table(name, **{"format-version": "1"}, **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.sql(f"ALTER TABLE {table.subject} SET TBLPROPERTIES ('format-version' = '2')")
    at.sql(f"DELETE FROM {table.subject} WHERE id = 3")
    at.sql(f"ALTER TABLE {table.subject} SET TBLPROPERTIES ('format-version' = '3')")
    at.sql(f"DELETE FROM {table.subject} WHERE id = 4")
    return table


def write_long_chain(at: Workshop, name: str) -> Crafted:
    """Far more metadata files than any one of them names; the newer half is compressed."""
    log = {"write.metadata.previous-versions-max": "5"}
    table = at.table(name, **log, **{"write.metadata.delete-after-commit.enabled": "false"})
    at.insert(table, ROWS)
    for number in range(LONG_CHAIN // 2):
        at.set_properties(table, number=str(number))
    at.set_properties(table, **{"write.metadata.compression-codec": "gzip"})
    for number in range(LONG_CHAIN // 2):
        at.set_properties(table, number=str(-number))
    loaded = at.load(table)
    assert len(loaded.metadata["metadata-log"]) == 5
    assert gzip.decompress(Path(local(loaded.metadata_location)).read_bytes())
    return table


def write_as_hadoop_does(at: Workshop, name: str) -> Crafted:
    """With a checksum beside every file, and the file that tells the current version."""
    table = at.table(name)
    at.insert(table, ROWS)
    (table.folder / "metadata" / "version-hint.text").write_text("2")
    for path in map(Path, table.files()):
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")
    return table


def write_branches(at: Workshop, name: str) -> Crafted:
    """Branches, a tag, a cherry-picked snapshot, manifests rewritten and a branch dropped: files
    that several manifests name, and snapshots that no branch does."""
    table = at.table(name, **{"format-version": "2"})
    at.insert(table, ROWS)
    at.sql(f"ALTER TABLE {table.subject} CREATE TAG first")
    at.sql(f"ALTER TABLE {table.subject} CREATE BRANCH aside")
    at.insert(table, MORE)
    at.sql(f"INSERT INTO {table.subject}.branch_aside VALUES (1000, 'aside')")
    refs = at.load(table).metadata["refs"]
    at.call("cherrypick_snapshot", table, snapshot_id=str(refs["aside"]["snapshot-id"]))
    at.call("rewrite_manifests", table)
    at.sql(f"INSERT INTO {table.subject}.branch_aside VALUES (1001, 'aside')")
    at.sql(f"ALTER TABLE {table.subject} DROP BRANCH aside")
    named = at.sql(f"SELECT data_file.file_path FROM {table.subject}.all_entries")
    assert len(named) > len(set(named))
    return table


def write_maintained(at: Workshop, name: str) -> Crafted:
    """Compacted, rolled back, expired."""
    table = at.table(name, **{"format-version": "2"}, **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.insert(table, MORE)
    at.sql(f"DELETE FROM {table.subject} WHERE id = 3")
    before = current_snapshot(at.load(table))["snapshot-id"]
    at.call("rewrite_data_files", table, options="map('rewrite-all', 'true')")
    at.call("rollback_to_snapshot", table, snapshot_id=str(before))
    at.insert(table, MORE)
    at.call("expire_snapshots", table, older_than="TIMESTAMP '2100-01-01'", retain_last="2")
    assert len(at.load(table).metadata["snapshots"]) == 2
    return table


def write_custom_paths(at: Workshop, name: str) -> Crafted:
    folders = [at.folder / name, at.folder / f"{name} data", at.folder / f"{name} metadata"]
    paths = {
        "write.data.path": f"{at.folder}/./nowhere/../{name} data",
        "write.metadata.path": f"file://{folders[2]}/",
    }
    table = at.table(name, folders=folders, **paths)
    at.insert(table, ROWS)
    assert all(checksums(folder) for folder in folders[1:])
    return table


def write_object_storage_layout(at: Workshop, name: str) -> Crafted:
    folders = [at.folder / name, at.folder / f"{name}-objects"]
    table = at.table(
        name,
        partitioned="part",
        folders=folders,
        **{"write.object-storage.enabled": "true", "write.data.path": f"file:{folders[1]}"},
    )
    at.insert(table, ROWS)
    assert checksums(folders[1])
    return table


def write_odd_names(at: Workshop, name: str) -> Crafted:
    table = at.table(f"{name} +#ü'☃", columns="id BIGINT, `p %` STRING", partitioned="`p %`")
    at.insert(
        table,
        "VALUES (1, 'a/b'), (2, 'c d'), (3, '%20'), (4, '+#ü'), (5, ''), (6, NULL), (7, '..'), "
        "(8, '../x'), (9, '100%'), (10, 'e=f&g'), (11, '%2F')",
    )
    return table


def write_odd_location(at: Workshop, name: str) -> Crafted:
    folder = at.folder / name / ODD
    table = at.table(name, folders=[folder], location=f"file:{folder}/")
    at.insert(table, ROWS)
    assert checksums(folder)
    return table


def write_empty(at: Workshop, name: str) -> Crafted:
    return at.table(name)


def write_rows_all_deleted(at: Workshop, name: str) -> Crafted:
    table = at.table(name, partitioned="part", **MERGE_ON_READ)
    at.insert(table, ROWS)
    at.sql(f"DELETE FROM {table.subject} WHERE id % 2 = 0")
    at.sql(f"DELETE FROM {table.subject}")
    assert at.count(table) == 0
    return table


def write_two_spellings(at: Workshop, name: str) -> Crafted:
    """Three names, one file."""
    table = at.table(name)
    at.insert(table, "SELECT id, 'x' FROM range(0, 9, 1, 1)")
    [path] = [path for path in table.files() if path.endswith(".parquet")]
    at.forge(table, [path, f"file:{path}", f"file://{path}"])
    return table


WHOLE: dict[Make, dict[str, int]] = {
    write_format_1: {"data": 6, "manifest": 3, "manifest_list": 2},
    write_manifests_in_the_snapshot: {"data": 6, "manifest": 3},
    write_position_deletes: {"position_deletes": 6, "statistics": 1, "partition_statistics": 1},
    write_equality_deletes: {"data": 1, "position_deletes": 1, "equality_deletes": 1},
    write_deletion_vectors: {"data": 3, "deletion_vectors": 2},
    write_through_all_formats: {"data": 1, "position_deletes": 1, "deletion_vectors": 1},
    write_long_chain: {"data": 1, "old_metadata": LONG_CHAIN + 2},
    write_as_hadoop_does: {"version_hint": 1, "data": 1},
    write_branches: {"data": 4},
    write_maintained: {"manifest_list": 2},
    write_custom_paths: {"data": 1},
    write_object_storage_layout: {"data": 3},
    write_odd_names: {"data": 11},
    write_odd_location: {"data": 1},
    write_two_spellings: {"data": 1, "manifest": 2},
    write_empty: {"current_metadata": 1},
    write_rows_all_deleted: {"data": 3},
}


# --- Tables whose metadata is partly gone -----------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """What is gone of a table, and what can therefore not be known."""

    gone: set[str] = field(default_factory=set)
    """Files that other files name."""
    unreadable: set[str] = field(default_factory=set)
    """Those of them that named others."""
    unknown: set[str] = field(default_factory=set)
    """Files that nothing names any more."""


def append_thrice(at: Workshop, name: str, version: str) -> tuple[Crafted, list[str], list[str]]:
    """Each snapshot adds a manifest with a data file. Both are told, oldest first."""
    table = at.table(name, **{"format-version": version}, **MERGE_ON_READ)
    for number in range(3):
        at.insert(table, f"SELECT id, 'x' FROM range({number}0, {number}9, 1, 1)")
    order = [one["snapshot-id"] for one in at.load(table).metadata["snapshots"]]
    rows = sorted(at.manifests(table), key=lambda row: order.index(row["added_snapshot_id"]))
    manifests = [local(row["manifest_path"]) for row in rows]
    files = [local(read_avro(path).rows[0]["data_file"]["file_path"]) for path in manifests]
    return table, manifests, files


def lose_a_manifest(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    table, manifests, files = append_thrice(at, name, "3")
    at.sql(f"DELETE FROM {table.subject} WHERE id % 10 = 3")
    Path(manifests[1]).unlink()
    return table, Damage({manifests[1]}, {manifests[1]}, {files[1]})


def lose_a_manifest_list(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    """Of the first snapshot: the others still name all that it named."""
    table, _, _ = append_thrice(at, name, "2")
    at.sql(f"DELETE FROM {table.subject} WHERE id = 1")
    at.delete_by_equality(table, [2])
    lists = [local(one["manifest-list"]) for one in at.load(table).metadata["snapshots"]]
    Path(lists[0]).unlink()
    return table, Damage({lists[0]}, {lists[0]})


def lose_all_but_the_root(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    table, manifests, files = append_thrice(at, name, "2")
    loaded = at.load(table)
    lists = {local(one["manifest-list"]) for one in loaded.metadata["snapshots"]}
    older = {local(one["metadata-file"]) for one in loaded.metadata["metadata-log"]}
    for path in {*manifests, *lists, *older}:
        Path(path).unlink()
    return table, Damage(lists | older, lists, set(files))


def lose_a_manifest_that_a_snapshot_names(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    """The later snapshot has dropped the files of the first, and its manifest still tells so."""
    table = write_manifests_in_the_snapshot(at, name)
    [first, *_] = at.load(table).metadata["snapshots"]
    [manifest] = map(local, first["manifests"])
    Path(manifest).unlink()
    return table, Damage({manifest}, {manifest})


def lose_links_of_the_chain(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    """Of the metadata files that a log of three leads to, some are gone and one is half a file."""
    table = at.table(name, **{"write.metadata.previous-versions-max": "3"})
    for number in range(16):
        at.set_properties(table, number=str(number))
    chain = sorted(path for path in table.files() if path.endswith(".metadata.json"))
    gone = {chain[-4], chain[-8], chain[3]}
    for path in gone:
        Path(path).unlink()
    half = Path(chain[-3])
    half.write_bytes(half.read_bytes()[:200])
    return table, Damage(gone)


def lose_data_files(at: Workshop, name: str) -> tuple[Crafted, Damage]:
    table, _, files = append_thrice(at, name, "2")
    Path(files[0]).unlink()
    Path(files[2]).unlink()
    return table, Damage({files[0], files[2]})


DAMAGED: list[Callable[[Workshop, str], tuple[Crafted, Damage]]] = [
    lose_a_manifest,
    lose_a_manifest_list,
    lose_all_but_the_root,
    lose_a_manifest_that_a_snapshot_names,
    lose_links_of_the_chain,
    lose_data_files,
]


def cut_off(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])


def overwrite(file: Path) -> None:
    file.write_bytes(b"none of Avro's " * 400)


# --- The purges -------------------------------------------------------------------------------


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
    """All of them, four at a time, beside a table that is none of their business."""

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
def test_every_file_is_found_and_none_is_left(purges: Purges, make: Make) -> None:
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
def test_what_can_be_known_is_deleted_and_what_cannot_is_told(
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
        assert "were gone before" in str(purged.task.result_summary)


@pytest.mark.parametrize("harm", [cut_off, overwrite])
@pytest.mark.parametrize("what", ["manifest", "manifest_list"])
def test_damaged_metadata_is_named_and_nothing_is_deleted(
    purges: Purges, harm: Callable[[Path], None], what: str
) -> None:
    """Unlike what is gone, it may be restored; so the purge ends, and can be taken up again."""
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


def test_the_table_beside_them_is_untouched(purges: Purges) -> None:
    assert purges.beside.files() == purges.neighbours
    assert purges.at.count(purges.beside) == 60


def test_how_many_siblings_were_looked_at_is_told(purges: Purges) -> None:
    """There are more of them than the platform's settings let it load."""
    checks = purges.of(write_empty).result["checks"]
    assert "other tables, 5 were looked at." in checks["siblings"]
