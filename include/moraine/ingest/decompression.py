"""Bodies as they arrive, unpacked step by step and never beyond a limit."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

import zstandard

from moraine.ingest.errors import BadBody, BodyTooLarge, WrongMediaType

_GZIP = 16 + zlib.MAX_WBITS
_STEP = 1 << 20
# A few bytes of zstd may stand for 128 KiB; so much of it stands for 32 MiB at most.
_ZSTD_STEP = 1 << 10
# What RFC 8878 asks every decoder to bear, and lets it refuse beyond.
_ZSTD_WINDOW = 8 << 20


class Unpacker(Protocol):
    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What the chunk unpacks to, in parts of a bounded size."""

    def finish(self) -> None:
        """Raise if something is missing at the end."""


class _Plain:
    def feed(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def finish(self) -> None:
        return


class _Gzip:
    """Any number of members, one after the other, as gzip has it."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        while chunk:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            self._begun = True
            try:
                yield self._member.decompress(chunk, _STEP)
            except zlib.error:
                raise BadBody("The body is not gzip, though Content-Encoding says so.") from None
            chunk = self._member.unconsumed_tail or self._member.unused_data

    def finish(self) -> None:
        if self._begun and not self._member.eof:
            raise BadBody("The gzip body ends too early.")


class _Zstd:
    def __init__(self) -> None:
        self._frame = self._new_frame()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        for start in range(0, len(chunk), _ZSTD_STEP):
            part = chunk[start : start + _ZSTD_STEP]
            while part:
                if self._frame.eof:
                    self._frame = self._new_frame()
                self._begun = True
                try:
                    yield self._frame.decompress(part)
                except zstandard.ZstdError:
                    raise BadBody(
                        "The body is not zstd with a window of up to 8 MiB, though "
                        "Content-Encoding says so."
                    ) from None
                part = self._frame.unused_data if self._frame.eof else b""

    def finish(self) -> None:
        if self._begun and not self._frame.eof:
            raise BadBody("The zstd body ends too early.")

    @staticmethod
    def _new_frame() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()


_UNPACKERS: dict[str, Callable[[], Unpacker]] = {
    "": _Plain,
    "identity": _Plain,
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "zstd": _Zstd,
}


def unpacker_for(encoding: str) -> Unpacker:
    try:
        return _UNPACKERS[encoding.strip().lower()]()
    except KeyError:
        raise WrongMediaType(
            f"Content-Encoding {encoding[:50]!r} is not known here; use gzip or zstd."
        ) from None


async def unpacked(
    chunks: AsyncIterator[bytes], encoding: str, most_bytes: int
) -> AsyncIterator[bytes]:
    """The plain bytes of a body. Neither they nor what was sent may be more than the limit."""
    unpacker = unpacker_for(encoding)
    received = total = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > most_bytes:
            raise _too_large(most_bytes)
        for part in unpacker.feed(chunk):
            total += len(part)
            if total > most_bytes:
                raise _too_large(most_bytes)
            if part:
                yield part
    unpacker.finish()


def _too_large(most_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {most_bytes} bytes; send it in parts.")
