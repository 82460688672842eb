"""What table metadata itself names."""

import gzip
import json

from moraine.catalog.client import LoadedTable
from moraine.operations.purge.order import PHASE_OF, FileKind, Phase
from moraine.operations.purge.plan import named_by_metadata, older_metadata


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


def test_the_metadata_log_is_followed_to_its_end() -> None:
    files = chain_of(versions=132, log_length=10)
    newest = json.loads(files[metadata_file(131)])

    found = list(older_metadata(newest, files.get))

    assert sorted(found) == [metadata_file(number) for number in range(131)]
    assert len(found) == len(set(found))


def test_the_chain_is_read_once_in_a_log_length_not_once_a_file() -> None:
    files = chain_of(versions=201, log_length=100)
    reads: list[str] = []

    def read(path: str) -> bytes | None:
        reads.append(path)
        return files.get(path)

    list(older_metadata(json.loads(files[metadata_file(200)]), read))

    assert len(reads) <= 3


def test_a_chain_goes_on_beside_files_that_are_missing() -> None:
    """The oldest file of the log is gone; the next one names what that one named, but one."""
    files = chain_of(versions=30, log_length=10)
    del files[metadata_file(19)]

    found = list(older_metadata(json.loads(files[metadata_file(29)]), files.get))

    assert sorted(found) == sorted(metadata_file(number) for number in range(29))


def test_a_chain_ends_where_nothing_is_left_and_still_names_it() -> None:
    files = chain_of(versions=30, log_length=10)
    for number in range(10, 29):
        del files[metadata_file(number)]

    found = list(older_metadata(json.loads(files[metadata_file(29)]), files.get))

    assert sorted(found) == [metadata_file(number) for number in range(19, 29)]


def test_a_chain_of_compressed_files() -> None:
    files = chain_of(versions=30, log_length=10)
    compressed = {path: gzip.compress(content) for path, content in files.items()}

    found = list(older_metadata(json.loads(files[metadata_file(29)]), compressed.get))

    assert len(found) == 29


def test_every_kind_that_metadata_names_is_found() -> None:
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


def test_every_kind_has_a_phase_and_the_root_goes_last() -> None:
    assert set(PHASE_OF) == set(FileKind)
    assert list(Phase)[-1] is PHASE_OF[FileKind.CURRENT_METADATA]
    order = list(Phase)
    leaves_first = [FileKind.DATA, FileKind.MANIFEST, FileKind.MANIFEST_LIST, FileKind.OLD_METADATA]
    ranks = [order.index(PHASE_OF[kind]) for kind in leaves_first]
    assert ranks == sorted(ranks)


def test_the_first_kinds_have_the_numbers_that_iceberg_gives_them() -> None:
    assert list(FileKind)[:3] == [
        FileKind.DATA,
        FileKind.POSITION_DELETES,
        FileKind.EQUALITY_DELETES,
    ]
