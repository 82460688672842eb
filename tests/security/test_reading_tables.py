"""A writer of one table, who has Moraine read what that writer may not, or more than fits."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from moraine.catalog.access import TableAccess
from moraine.errors import MetadataDamaged, StorageRefused
from moraine.operations.purge import avro, executor_work, job, metadata
from moraine.operations.purge.errors import PathOutsideTable
from moraine.operations.purge.metadata import NamedFile
from moraine.operations.purge.model import FileKind
from moraine.settings import CatalogSettings
from moraine.storage import stores
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

MANIFEST_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "manifest_length", "type": "long"},
    ],
}


def avro_file(path: Path, *rows: dict[str, Any], schema: Any = MANIFEST_LIST) -> str:
    content = io.BytesIO()
    fastavro.writer(content, schema, rows, codec="deflate")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.getvalue())
    return str(path)


class Table:
    """A table on the disk; `opened` is every file that was opened to plan its purge."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "wh" / "t"
        self.opened: list[str] = []
        read = Storage.read

        def recorded(storage: Storage, location: str, *limit: Any) -> bytes | None:
            self.opened.append(location)
            return read(storage, location, *limit)

        monkeypatch.setattr(Storage, "read", recorded)

        def by_iceberg(*_arguments: Any) -> Any:
            self.opened.append("all, by Iceberg")
            raise AssertionError("Iceberg opens every manifest, wherever it is")

        monkeypatch.setattr(job, "_read_by_iceberg", by_iceberg)

    @property
    def files(self) -> job.TableFiles:
        roots = Roots.of([str(self.folder)])
        access = TableAccess(CatalogSettings(uri="http://127.0.0.1:9"), ("shop",), "t")
        storage = functools.partial(Storage, Credentials(), bounds=roots)
        return job.TableFiles(access, roots, storage)

    def plan(self, refuse: Callable[[list[str]], None], *lists: str) -> None:
        named = [NamedFile(path, FileKind.MANIFEST_LIST) for path in lists]
        session: Any = None
        job.write_inventory(session, self.files, named, str(self.folder / "out"), refuse)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(tmp_path, monkeypatch)


ELSEWHERE = [
    "http://169.254.169.254/latest/meta-data/m.avro",
    "file:///dev/zero",
    "file:///etc/passwd",
    "s3://payroll/metadata/m.avro",
    "hdfs://namenode/m.avro",
    "../../m.avro",
]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_manifest_elsewhere_is_not_opened(table: Table, path: str) -> None:
    listed = avro_file(table.folder / "a.avro", {"manifest_path": path, "manifest_length": 9})
    refuse = functools.partial(metadata.refuse_outside_files, max_named=5)
    with pytest.raises(PathOutsideTable, match="1 file lies outside") as refused:
        table.plan(refuse, listed)
    assert refused.value.details == path
    assert table.opened == [listed]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_nor_is_it_if_files_outside_are_skipped(
    table: Table, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    own = str(table.folder / "own.avro")
    rows = [{"manifest_path": name, "manifest_length": 9} for name in (path, own)]
    listed = avro_file(table.folder / "a.avro", *rows)
    seen: list[Any] = []

    def one_by_one(_spark: Any, _storage: Any, manifests: Any) -> Any:
        seen.append(manifests)
        raise InterruptedError

    monkeypatch.setattr(job, "_read_one_by_one", one_by_one)
    with pytest.raises(InterruptedError):
        table.plan(lambda _paths: None, path, listed)
    assert table.opened == [listed]
    assert [row[0] for row in seen[0].inside] == [own]
    assert seen[0].outside == [path]


def test_a_table_whose_manifests_are_its_own_is_read_by_iceberg(table: Table) -> None:
    own = {"manifest_path": str(table.folder / "own.avro"), "manifest_length": 9}
    listed = avro_file(table.folder / "a.avro", own)
    with pytest.raises(AssertionError):
        table.plan(lambda _paths: None, listed)
    assert table.opened == [listed, "all, by Iceberg"]


def test_executors_open_nothing_outside_the_table(table: Table) -> None:
    """Whatever paths they are given."""
    for path in ELSEWHERE:
        with table.files.storage() as storage, pytest.raises(StorageRefused, match="outside"):
            list(executor_work.read_one(storage, executor_work.decode_manifest, path))


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "link"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """A device has no end, a pipe blocks until it has a writer, a link leads elsewhere."""
    path = tmp_path / "m.avro"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    with Storage(Credentials()) as storage, pytest.raises(StorageRefused):
        storage.read(str(path))


def test_a_file_of_any_size_does_not_fill_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "m.avro").open("wb") as file:
        file.truncate(stores.MAX_READ_BYTES + 1)
    with Storage(Credentials()) as storage:
        with pytest.raises(StorageRefused, match="larger"):
            storage.read(str(tmp_path / "m.avro"))
        assert storage.read(str(tmp_path / "none.avro")) is None


def test_older_metadata_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_READ_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (1 << 22) + b'{"metadata-log": [{"metadata-file": "d"}]}')
    honest = gzip.compress(json.dumps({"metadata-log": [{"metadata-file": "c"}]}).encode())
    files = {"a": bomb, "b": honest}
    current = {"metadata-log": [{"metadata-file": "a"}, {"metadata-file": "b"}]}
    assert list(metadata.older_metadata(current, files.get)) == ["a", "b", "c"]


def test_older_metadata_that_is_nested_deeply_is_damaged() -> None:
    files = {"a": b'{"a":' * 200_000}
    current = {"metadata-log": [{"metadata-file": "a"}]}
    assert list(metadata.older_metadata(current, files.get)) == ["a"]


def test_a_block_of_a_manifest_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", 1 << 20)
    row = {"manifest_path": "a" * (1 << 22), "manifest_length": 1}
    path = avro_file(tmp_path / "m.avro", row)
    assert Path(path).stat().st_size < 1 << 16
    with Storage(Credentials()) as storage, pytest.raises(MetadataDamaged):
        list(executor_work.read_one(storage, executor_work.decode_manifest_list, path))


def test_compression_that_iceberg_does_not_know_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    row = {"manifest_path": "a", "manifest_length": 1}
    fastavro.writer(content, MANIFEST_LIST, [row], codec="xz")
    with pytest.raises(ValueError, match="no such compression"):
        list(avro.records(content.getvalue()))


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_manifests_as_iceberg_writes_them_are_read(codec: str) -> None:
    content = io.BytesIO()
    rows = [{"manifest_path": f"/t/{n}", "manifest_length": n} for n in range(5000)]
    fastavro.writer(content, MANIFEST_LIST, rows, codec=codec, sync_interval=1000)
    assert list(avro.records(content.getvalue())) == rows


@pytest.mark.parametrize(
    ("kind", "value"), [("null", None), ("bytes", b"/t/a"), ("long", 7)], ids=["null", "bytes", "7"]
)
def test_a_path_that_is_no_text_is_damage(tmp_path: Path, kind: str, value: Any) -> None:
    """A record without a byte could be there billions of times."""
    fields = [{"name": "manifest_path", "type": kind}, {"name": "manifest_length", "type": "long"}]
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    row = {"manifest_path": value, "manifest_length": 1}
    path = avro_file(tmp_path / "m.avro", row, schema=schema)
    with Storage(Credentials()) as storage, pytest.raises(MetadataDamaged):
        list(executor_work.read_one(storage, executor_work.decode_manifest_list, path))


def test_a_file_cannot_pass_for_the_root(tmp_path: Path) -> None:
    """The number of its content is its kind in the inventory."""
    data_file = {
        "type": "record",
        "name": "data_file",
        "fields": [
            {"name": "content", "type": "int"},
            {"name": "file_path", "type": "string"},
            {"name": "file_format", "type": "string"},
            {"name": "file_size_in_bytes", "type": "long"},
        ],
    }
    fields = [{"name": "data_file", "type": data_file}]
    schema = {"type": "record", "name": "manifest_entry", "fields": fields}
    file = {"file_path": "/t/a", "file_format": "PARQUET", "file_size_in_bytes": 1}
    for content in (FileKind.CURRENT_METADATA.number, executor_work.GONE):
        row = {"data_file": file | {"content": content}}
        path = avro_file(tmp_path / "m.avro", row, schema=schema)
        with Storage(Credentials()) as storage, pytest.raises(MetadataDamaged):
            list(executor_work.read_one(storage, executor_work.decode_manifest, path))
