"""The small parts of the doors: rates, packed bodies, staged files, names of columns."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import zstandard
from pyiceberg.types import BinaryType, DecimalType, ListType, NestedField, StringType

from moraine.errors import ValidationFailed
from moraine.ingest.columns import Column, ColumnKind, ColumnType
from moraine.ingest.decompression import unpacked
from moraine.ingest.errors import BadBody, BodyTooLarge, RateLimited, WrongMediaType
from moraine.ingest.rest.rate import RateLimit
from moraine.ingest.staging import StagedFile, measure, remove_stale_files, staging_folder
from moraine.ingest.tables import schemas
from moraine.ingest.tables.schemas import Promotion

LINES = b'{"a": 1}\n' * 1000


def unpack(chunks: list[bytes], encoding: str, most: int = 1 << 20) -> bytes:
    async def given() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def run() -> bytes:
        return b"".join([part async for part in unpacked(given(), encoding, most)])

    return asyncio.run(run())


# --- Rates ----------------------------------------------------------------------------------


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    now = 0.0
    rate = RateLimit(2, 3, clock=lambda: now)
    for _ in range(3):
        rate.take("a")
    with pytest.raises(RateLimited) as refused:
        rate.take("a")
    assert refused.value.retry_after == 1
    rate.take("b")  # others have their own
    now = 0.5
    rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")
    now = 100.0
    for _ in range(3):
        rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")


def test_a_slow_rate_says_how_long_to_wait() -> None:
    rate = RateLimit(0.1, 1, clock=lambda: 0.0)
    rate.take("a")
    with pytest.raises(RateLimited) as refused:
        rate.take("a")
    assert refused.value.retry_after == 10


# --- Packed bodies --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "GZIP", "x-gzip", "zstd"])
def test_bodies_are_unpacked_however_they_are_cut(encoding: str, size: int) -> None:
    packed = {
        "gzip": gzip.compress(LINES),
        "zstd": zstandard.ZstdCompressor().compress(LINES),
    }.get(encoding.lower().removeprefix("x-"), LINES)
    chunks = [packed[start : start + size] for start in range(0, len(packed), size)]
    assert unpack(chunks, encoding) == LINES


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_is_not_whole_is_refused(encoding: str) -> None:
    packed = (
        gzip.compress(LINES)
        if encoding == "gzip"
        else zstandard.ZstdCompressor(write_checksum=True).compress(LINES)
    )
    with pytest.raises(BadBody):
        unpack([packed[:-3]], encoding)
    with pytest.raises(BadBody):
        unpack([b"no such thing"], encoding)
    with pytest.raises(BadBody):
        unpack([packed, b"garbage after it"], encoding)


@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_bombs_are_stopped_at_the_limit(encoding: str) -> None:
    zeros = bytes(20 << 20)
    packed = {
        "": zeros[: 2 << 20],
        "gzip": gzip.compress(zeros, 1),
        "zstd": zstandard.ZstdCompressor(level=1).compress(zeros),
    }[encoding]
    with pytest.raises(BodyTooLarge):
        unpack([packed], encoding, 1 << 20)


def test_a_large_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(LINES) + compressor.flush()
    with pytest.raises(BadBody, match="8 MiB"):
        unpack([packed], "zstd")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(WrongMediaType):
        unpack([zlib.compress(LINES)], encoding)


# --- Staged files ---------------------------------------------------------------------------


def test_a_staged_file_is_measured_as_it_is_written(tmp_path: Path) -> None:
    with StagedFile(tmp_path / "ingest") as file:
        for part in (b'{"a"', b": 1}\n{}", b""):
            file.write(part)
        body = file.finish()
    assert (body.size, body.lines) == (11, 2)
    assert body.location is not None
    assert body.fingerprint == hashlib.sha256(Path(body.location).read_bytes()).hexdigest()
    assert measure(b'{"a": 1}\n{}').fingerprint == body.fingerprint
    assert measure(b'{"a": 1}\n{}').lines == 2


def test_a_file_that_was_not_finished_goes(tmp_path: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), StagedFile(tmp_path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_was_left_behind_goes_and_what_waits_stays(tmp_path: Path) -> None:
    folder = staging_folder(tmp_path.as_uri())
    folder.mkdir()
    needed, left = folder / "a.ndjson", folder / "b.ndjson"
    needed.touch()
    left.touch()
    assert remove_stale_files(tmp_path.as_uri(), {str(needed)}, timedelta(hours=1)) == 0
    assert remove_stale_files(tmp_path.as_uri(), {str(needed)}, timedelta(seconds=-1)) == 1
    assert needed.exists()
    assert not left.exists()


# --- Columns --------------------------------------------------------------------------------


def test_types_survive_the_way_through_iceberg() -> None:
    words = ["bool", "int", "long", "real", "string", "timestamp", "dynamic", "vector(384)"]
    columns = [Column(f"c{n}", ColumnType.parse(word)) for n, word in enumerate(words)]
    columns.append(Column("text", ColumnType(ColumnKind.TEXT)))
    assert list(schemas.columns_of(schemas.schema_of(columns))) == columns


@pytest.mark.parametrize(
    "field",
    [
        NestedField(1, "a", DecimalType(9, 2)),
        NestedField(1, "a", ListType(2, StringType())),
        NestedField(1, "a", ListType(2, BinaryType()), doc="vector(3)"),
    ],
)
def test_other_types_are_foreign(field: NestedField) -> None:
    (column,) = schemas.columns_of(schemas.Schema(field))
    assert column.type.kind is ColumnKind.FOREIGN


@pytest.mark.parametrize("words", ["", "decimal", "vector", "vector(0)", "vector(1.5)", "text"])
def test_other_words_are_no_type(words: str) -> None:
    with pytest.raises(ValidationFailed, match="is no column type"):
        ColumnType.parse(words)


@pytest.mark.parametrize("name", ["a", "_a1", "a" * 128])
def test_names_that_become_columns(name: str) -> None:
    assert schemas.can_be_column(name)


@pytest.mark.parametrize("name", ["", "1a", "A", "a b", "a-b", "ä", "a" * 129, "props", "message"])
def test_names_that_do_not(name: str) -> None:
    assert not schemas.can_be_column(name)


def test_each_request_brings_so_many_columns() -> None:
    first, second = [f"a{n}" for n in range(4)], ["a3", "B", "b0", "b1", "b2"]
    assert schemas.new_columns([first, second], 3) == ["a0", "a1", "a2", "a3", "b0", "b1"]


@pytest.mark.parametrize("columns", [[], [Column("A", ColumnType(ColumnKind.INT))]])
def test_bad_columns_are_refused(columns: list[Column]) -> None:
    with pytest.raises(ValidationFailed):
        schemas.check_columns(columns)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationFailed, match="two columns a"):
        schemas.check_columns([Column("a", ColumnType(ColumnKind.INT))] * 2)


def test_what_can_be_promoted() -> None:
    assert Promotion.of("took", ColumnType.parse("real")).column == "took_real"
    with pytest.raises(ValidationFailed, match="can be promoted to"):
        Promotion.of("took", ColumnType.parse("vector(2)"))
    with pytest.raises(ValidationFailed, match="name of its own"):
        Promotion.of("took", ColumnType.parse("real"), "took")
