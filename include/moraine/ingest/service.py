"""Receives bytes, once for each key, and answers with the outcome.

A small body is reserved and stored by one statement. For a large one the key is reserved first, so
that no other sender gets it; then the body is streamed to a file, and memory holds one chunk of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from moraine.failpoints import async_failpoint
from moraine.ingest.errors import (
    BadBody,
    InProgress,
    KeyReused,
    Overloaded,
    WriteFailing,
    WriterAway,
)
from moraine.ingest.model import Arrival, IngestRequest, StagedBody, State, Taken
from moraine.ingest.staging import StagedFile, measure, staging_folder
from moraine.ingest.store import SETTLED, DoorStore
from moraine.ledger.listener import Feed
from moraine.settings.ingest import IngestSettings

Chunks = AsyncIterator[bytes]
_BEAT_SECONDS = 3.0
_ROOM_SECONDS = 0.5
# An upload is counted in the ledger whenever so much more of it has arrived.
_COUNTED_BYTES = 8 << 20
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Receipt:
    """Says that the bytes of a key are stored."""

    key: str
    known: IngestRequest | None
    """The earlier request with the key; None if it is new."""


class SettledFeed(Feed[str, IngestRequest]):
    """Tells callers that their key is settled."""

    def __init__(self, url: str, store: DoorStore, *, poll_interval: float = 5.0) -> None:
        super().__init__(url, SETTLED, poll_interval=poll_interval)
        self._store = store

    async def find(self, keys: list[str]) -> Mapping[str, IngestRequest]:
        return await self._store.find(keys)


class IngestService:
    def __init__(
        self, settings: IngestSettings, store: DoorStore, feed: SettledFeed, workspace: str
    ) -> None:
        self._settings = settings
        self.store = store
        self._feed = feed
        self._workspace = workspace
        self._room: dict[str, Taken] = {}
        self._room_at = float("-inf")

    async def take(self, arrival: Arrival, body: bytes) -> Receipt:
        """Store bytes durably, once for each key; a writer takes them to the table."""

        async def chunks() -> Chunks:
            yield body

        return await self.receive(arrival, chunks())

    async def receive(self, arrival: Arrival, chunks: Chunks) -> Receipt:
        """The same for bytes that are still arriving."""
        if await self._is_full(arrival.database) and not await self.store.find([arrival.key]):
            raise Overloaded()
        head = bytearray()
        async for chunk in chunks:
            head += chunk
            if len(head) > self._settings.inline_bytes:
                return await self._receive_large(arrival, bytes(head), chunks)
        if not head:
            raise BadBody("The request has no body.")
        body = measure(bytes(head))
        known = await self._reserve(arrival, body)
        if isinstance(known, IngestRequest):
            return Receipt(known.key, _same(known, arrival, body.fingerprint))
        await async_failpoint("ingest.staged")
        return Receipt(arrival.key, None)

    async def outcome(self, receipt: Receipt, wait: float) -> IngestRequest:
        """The settled request.

        If it is not settled in time, raises WriteFailing, InProgress or WriterAway, whichever is
        true by then.
        """
        if receipt.known is not None and receipt.known.state.settled:
            return receipt.known
        with self._feed.subscribe(receipt.key) as subscription:
            # It may have been settled before the subscription.
            found = await self._find(receipt.key)
            if found is not None and found.state.settled:
                return found
            if settled := await subscription.until(lambda one: one.state.settled, wait):
                return settled
        found = await self._find(receipt.key)
        if found is not None and found.state.settled:
            return found
        if found is not None and found.error is not None:
            raise WriteFailing(
                f"The bytes are kept, but could not be written in {found.failures} attempts so "
                f"far. {found.error['message']} Ask again with the same key."
            )
        if found is not None and found.state is State.WRITING:
            raise InProgress()
        raise InProgress() if await self.store.writer_is_running() else WriterAway()

    async def _find(self, key: str) -> IngestRequest | None:
        return (await self.store.find([key])).get(key)

    async def _receive_large(self, arrival: Arrival, head: bytes, chunks: Chunks) -> Receipt:
        known = await self._reserve(arrival, None)
        if isinstance(known, IngestRequest):
            return Receipt(known.key, _same(known, arrival, await _fingerprint(head, chunks)))
        try:
            await async_failpoint("ingest.reserved")
            staged = await self._stage(known, arrival.database, head, chunks)
        except BaseException:
            await asyncio.shield(self.store.forget(known))
            raise
        if not staged:
            raise InProgress()
        await async_failpoint("ingest.staged")
        return Receipt(arrival.key, None)

    async def _stage(self, reservation: int, database: str, head: bytes, chunks: Chunks) -> bool:
        """Stream the body to a file. False: another sender took the reservation over."""
        with StagedFile(staging_folder(self._workspace)) as file:
            file.write(head)
            pending = bytearray()
            size, counted, beat_at = len(head), 0, time.monotonic() + _BEAT_SECONDS
            async for chunk in chunks:
                pending += chunk
                size += len(chunk)
                if len(pending) >= _WRITE_BYTES:
                    await asyncio.to_thread(file.write, bytes(pending))
                    pending.clear()
                if time.monotonic() > beat_at or size - counted > _COUNTED_BYTES:
                    if not await self.store.still_receiving(reservation, size):
                        raise InProgress()
                    if await self._is_full(database, max_age=0):
                        raise Overloaded()
                    counted, beat_at = size, time.monotonic() + _BEAT_SECONDS
            file.write(bytes(pending))
            body = await asyncio.to_thread(file.finish)
            staged = await self.store.stage(reservation, body)
            if not staged:
                file.discard()
            return staged

    async def _reserve(self, arrival: Arrival, body: StagedBody | None) -> int | IngestRequest:
        while True:
            found = await self.store.reserve(arrival, body)
            if found is not None:
                return found

    async def _is_full(self, database: str, max_age: float = _ROOM_SECONDS) -> bool:
        """Whether there is no room left, for this database or at all."""
        if time.monotonic() - self._room_at > max_age:
            self._room_at = time.monotonic()
            self._room = await self.store.room()
        limits, share = self._settings, self._settings.database_share
        requests, size = limits.max_waiting_requests, limits.max_waiting_bytes
        every = self._room.values()
        whole = Taken(sum(one.requests for one in every), sum(one.bytes for one in every))
        own = self._room.get(database, Taken())
        return whole.fills(requests, size) or own.fills(share * requests, share * size)


def _same(known: IngestRequest, arrival: Arrival, fingerprint: str) -> IngestRequest:
    if known.state is State.RECEIVING:
        raise InProgress()
    asked = (arrival.database, arrival.table, fingerprint)
    if (known.database_name, known.table_name, known.fingerprint) != asked:
        raise KeyReused()
    return known


async def _fingerprint(head: bytes, chunks: Chunks) -> str:
    digest = hashlib.sha256(head)
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
