"""The bytes of a dropped file, and the certainty that they are those that were hashed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from moraine.storage.stores import Storage, StoredFile

T = TypeVar("T")


class FileChanged(Exception):
    """The file is not as it was: somebody writes to it, or has taken it away."""


async def hash_file(storage: Storage, file: StoredFile) -> str:
    """The sha256 of a file that stays as it is meanwhile."""

    def run() -> str:
        digest = hashlib.sha256()
        for chunk in storage.chunks(file.location, file.size):
            digest.update(chunk)
        return digest.hexdigest()

    sha256 = await asyncio.to_thread(run)
    await require_unchanged(storage, file)
    return sha256


async def read_file(storage: Storage, file: StoredFile, sha256: str) -> AsyncIterator[bytes]:
    """The bytes once more. Others than those of the hash end in FileChanged, never in silence."""
    digest = hashlib.sha256()
    async for chunk in in_thread(storage.chunks(file.location, file.size)):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise FileChanged
    await require_unchanged(storage, file)


async def require_unchanged(storage: Storage, file: StoredFile) -> None:
    if await asyncio.to_thread(storage.look, file.location) != file:
        raise FileChanged


async def in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Each next item is waited for in a thread."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]
