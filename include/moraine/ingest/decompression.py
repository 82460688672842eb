"""Bodies decompressed as they arrive, in bounded steps and up to a limit."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import zstandard

from moraine.ingest.errors import BadBody, BodyTooLarge, WrongMediaType

# Decompressed at once: a few bytes of zstd may expand to 128 KiB, so these to 32 MiB at most, and
# those of gzip to 1 MiB.
_STEP = 1 << 10
# RFC 8878 requires decoders to support this window, and allows them to refuse larger ones.
_ZSTD_WINDOW = 8 << 20


class _Plain:
    def feed(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def finish(self) -> None:
        return


class _Packed:
    """Any number of members, or frames, one after the other, as both formats allow."""

    def __init__(self, new_member: Callable[[], Any], name: str) -> None:
        self._new_member = new_member
        self._name = name
        self._member = new_member()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The decompressed chunk, in parts of a bounded size."""
        for start in range(0, len(chunk), _STEP):
            part = chunk[start : start + _STEP]
            while part:
                if self._member.eof:
                    self._member = self._new_member()
                self._begun = True
                try:
                    yield self._member.decompress(part)
                except (zlib.error, zstandard.ZstdError):
                    raise BadBody(
                        f"The body is not {self._name}, though Content-Encoding says so."
                    ) from None
                part = self._member.unused_data if self._member.eof else b""

    def finish(self) -> None:
        """Raise if something is missing at the end."""
        if self._begun and not self._member.eof:
            raise BadBody("The compressed body ends too early.")


def _gzip() -> _Packed:
    return _Packed(lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), "gzip")


def _zstd() -> _Packed:
    frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
    return _Packed(frames, "zstd with a window of up to 8 MiB")


_UNPACKERS: dict[str, Callable[[], _Plain | _Packed]] = {
    "": _Plain,
    "identity": _Plain,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}


def _unpacker_for(encoding: str) -> _Plain | _Packed:
    try:
        return _UNPACKERS[encoding.strip().lower()]()
    except KeyError:
        raise WrongMediaType(
            f"Content-Encoding {encoding[:50]!r} is not supported; use gzip or zstd."
        ) from None


async def unpacked(
    chunks: AsyncIterator[bytes], encoding: str, max_bytes: int
) -> AsyncIterator[bytes]:
    """The plain bytes of a body. The limit holds for them and for the bytes sent."""
    unpacker = _unpacker_for(encoding)
    received = total = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > max_bytes:
            raise _too_large(max_bytes)
        for part in unpacker.feed(chunk):
            total += len(part)
            if total > max_bytes:
                raise _too_large(max_bytes)
            if part:
                yield part
    unpacker.finish()


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """A body that is complete in memory, decompressed up to the limit."""
    unpacker, plain = _unpacker_for(encoding), bytearray()
    for part in unpacker.feed(body):
        plain += part
        if len(plain) > max_bytes:
            raise _too_large(max_bytes)
    unpacker.finish()
    return bytes(plain)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {max_bytes} bytes; send it in parts.")
