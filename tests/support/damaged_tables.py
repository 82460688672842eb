"""Tables whose metadata is partly gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.tables import MERGE_ON_READ, Crafted, Workshop, local, read_avro
from support.whole_tables import write_manifests_in_the_snapshot


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
