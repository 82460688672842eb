"""Manifests and manifest lists, decoded with bounds: a writer of the table chose their content."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import fastavro
from fastavro.read import BLOCK_READERS

# Iceberg closes a manifest at 8 MB, and its blocks are of 64 kB.
_MAX_BLOCK_BYTES = 64 << 20


def records(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of an Avro file. Any error is due to the content."""
    for record in fastavro.reader(io.BytesIO(content)):
        if not isinstance(record, dict):
            raise ValueError("not a record")
        yield record


def path_in(record: dict[str, Any], name: str) -> str:
    path = record[name]
    if not isinstance(path, str):
        raise ValueError("a path is not text")
    return path


def _read_long(file: Any) -> int:
    """Avro's zigzag integer of variable length."""
    value = 0
    for shift in range(0, 70, 7):
        byte: int = file.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number is too long")


def _inflate_block(file: Any) -> io.BytesIO:
    """Like fastavro's own, but a block that grows without end is refused."""
    length = _read_long(file)
    if length < 0:
        raise ValueError("a block has a negative length")
    inflating = zlib.decompressobj(-15)
    block = inflating.decompress(file.read(length), _MAX_BLOCK_BYTES)
    if inflating.unconsumed_tail:
        raise ValueError("a block is too large once decompressed")
    return io.BytesIO(block)


def _refuse_block(_file: Any) -> io.BytesIO:
    raise ValueError("Iceberg knows no such compression")


BLOCK_READERS.update(deflate=_inflate_block, bzip2=_refuse_block, xz=_refuse_block)
