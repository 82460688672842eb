"""What a table's metadata decides: which files it names, and whether they may be purged."""

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from moraine.catalog.client import LoadedTable
from moraine.operations.purge import metadata
from moraine.operations.purge.errors import PathOutsideTable, PurgeForbidden, TableChanged
from moraine.operations.purge.metadata import named_by_metadata, older_metadata
from moraine.operations.purge.model import FileKind, PinnedTable, PurgeParameters


def metadata_file(number: int) -> str:
    return f"file:///t/metadata/{number:05}.metadata.json"


def chain_of(versions: int, log_length: int) -> dict[str, bytes]:
    """Metadata files of which each names at most `log_length` of those before it."""
    return {
        metadata_file(number): json.dumps(
            {
                "metadata-log": [
                    {"metadata-file": metadata_file(before)}
                    for before in range(max(0, number - log_length), number)
                ]
            }
        ).encode()
        for number in range(versions)
    }


def test_purge_metadata_log_is_followed_to_its_end() -> None:
    files = chain_of(versions=132, log_length=10)
    newest = json.loads(files[metadata_file(131)])

    found = list(older_metadata(newest, files.get))

    assert sorted(found) == [metadata_file(number) for number in range(131)]
    assert len(found) == len(set(found))


def test_purge_metadata_chain_is_read_once_per_log_not_once_per_file() -> None:
    files = chain_of(versions=201, log_length=100)
    reads: list[str] = []

    def read(path: str) -> bytes | None:
        reads.append(path)
        return files.get(path)

    list(older_metadata(json.loads(files[metadata_file(200)]), read))

    assert len(reads) <= 3


def test_purge_metadata_chain_goes_on_past_missing_files() -> None:
    """The oldest file of the log is gone; the next one names all but one of the files it named."""
    files = chain_of(versions=30, log_length=10)
    del files[metadata_file(19)]

    found = list(older_metadata(json.loads(files[metadata_file(29)]), files.get))

    assert sorted(found) == sorted(metadata_file(number) for number in range(29))


def test_purge_metadata_chain_that_ends_at_missing_files_names_them() -> None:
    files = chain_of(versions=30, log_length=10)
    for number in range(10, 29):
        del files[metadata_file(number)]

    found = list(older_metadata(json.loads(files[metadata_file(29)]), files.get))

    assert sorted(found) == [metadata_file(number) for number in range(19, 29)]


def test_purge_metadata_chain_of_compressed_files() -> None:
    files = chain_of(versions=30, log_length=10)
    compressed = {path: gzip.compress(content) for path, content in files.items()}

    found = list(older_metadata(json.loads(files[metadata_file(29)]), compressed.get))

    assert len(found) == 29


def test_purge_metadata_finds_every_kind_of_file_that_it_names() -> None:
    table = LoadedTable(
        "file:///t/metadata/v3.json",
        {
            "snapshots": [{"manifest-list": "snap-1.avro"}, {"manifest-list": "snap-2.avro"}],
            "statistics": [{"statistics-path": "s.puffin", "file-size-in-bytes": 7}],
            "partition-statistics": [{"statistics-path": "p.parquet", "file-size-in-bytes": 9}],
            "metadata-log": [{"metadata-file": "v2.json"}],
        },
    )

    found = [(entry.kind, entry.path, entry.size) for entry in named_by_metadata(table, {}.get)]

    assert found == [
        (FileKind.MANIFEST_LIST, "snap-1.avro", None),
        (FileKind.MANIFEST_LIST, "snap-2.avro", None),
        (FileKind.STATISTICS, "s.puffin", 7),
        (FileKind.PARTITION_STATISTICS, "p.parquet", 9),
        (FileKind.OLD_METADATA, "v2.json", None),
        (FileKind.CURRENT_METADATA, "file:///t/metadata/v3.json", None),
    ]


# --- Whether a table may be purged -----------------------------------------------------------


def table(**properties: str) -> LoadedTable:
    metadata = {"table-uuid": "u-1", "location": "file:///w/shop/t", "properties": properties}
    return LoadedTable("file:///w/shop/t/metadata/v1.json", metadata)


def asked(**more: Any) -> PurgeParameters:
    identity = {"catalog_name": "c", "namespace_levels": ["n"], "table_name": "t"}
    return PurgeParameters.model_validate({"table_identity": identity, **more})


@pytest.mark.parametrize("value", ["false", "FALSE", "False"])
def test_purge_refuses_a_table_that_shares_files(value: str) -> None:
    with pytest.raises(PurgeForbidden, match=r"gc\.enabled"):
        metadata.check_purge_allowed(table(**{"gc.enabled": value}))


def test_purge_of_a_table_is_allowed_by_default() -> None:
    metadata.check_purge_allowed(table())
    metadata.check_purge_allowed(table(**{"gc.enabled": "true"}))


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"table-uuid": "u-2"}},
        {"metadata_location": "file:///w/shop/t/metadata/v0.json"},
    ],
)
def test_purge_refuses_another_table_than_the_one_asked_for(more: dict[str, Any]) -> None:
    with pytest.raises(TableChanged):
        metadata.check_identity(asked(**more), table())


def test_purge_accepts_the_table_asked_for() -> None:
    location = "file:///w/shop/t/metadata/v1.json"
    metadata.check_identity(
        asked(metadata={"table-uuid": "u-1"}, metadata_location=location), table()
    )
    metadata.check_identity(asked(), table())


@pytest.mark.parametrize("changed", ["uuid", "metadata_location"])
def test_purge_refuses_a_table_that_changed_since_it_was_pinned(changed: str) -> None:
    location = "file:///w/shop/t/metadata/v1.json"
    pinned = PinnedTable(uuid="u-1", metadata_location=location)
    metadata.refuse_change(pinned, table(), lambda: "42 files went.")
    other = pinned.model_copy(update={changed: "other"})
    with pytest.raises(TableChanged, match=changed) as refused:
        metadata.refuse_change(other, table(), lambda: "42 files went.")
    assert "42 files went." in str(refused.value)


def test_purge_requires_the_entity_id_of_the_catalog_to_match() -> None:
    identity = {
        "catalog_name": "c",
        "namespace_levels": ["n"],
        "table_name": "t",
        "table_entity_id": "e-1",
    }
    asked_for = PurgeParameters.model_validate({"table_identity": identity})
    silent, same, other = (
        replace(table(), config=config)
        for config in ({}, {"table-entity-id": "e-1"}, {"table-entity-id": "e-2"})
    )
    assert metadata.check_identity(asked_for, same) == {}
    assert "not checked" in metadata.check_identity(asked_for, silent)["table_entity_id"]
    with pytest.raises(TableChanged, match="table_entity_id e-1"):
        metadata.check_identity(asked_for, other)


def test_purge_refuses_files_outside_with_their_paths() -> None:
    with pytest.raises(PathOutsideTable, match="3 files") as refused:
        metadata.refuse_outside_files(["/etc/passwd", "/etc/group"], 1, total=3)
    assert refused.value.details == "/etc/passwd"
    assert refused.value.report == {"outside": {"files": 3, "paths": ["/etc/passwd"]}}
    metadata.refuse_outside_files([], 1)
