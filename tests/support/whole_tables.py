"""Tables that have been through everything, and of which every file is there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from support.platform import checksums
from support.tables import MERGE_ON_READ, Crafted, Workshop, current_snapshot, local, read_avro

Make = Callable[[Workshop, str], Crafted]

ROWS = "SELECT id, concat('a ', id % 3) FROM range(0, 60, 1, 1)"
MORE = "SELECT id, concat('b ', id % 2) FROM range(60, 80, 1, 1)"
ODD = "100% of #1 + ü %2F %20x"
LONG_CHAIN = 130


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
