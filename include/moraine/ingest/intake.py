"""Takes bytes in, once for each key, and tells what became of them.

Small bodies are reserved and kept by one statement. A large one is reserved first, so that nobody
else takes its key, then streamed to a file; memory holds a chunk of it at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from moraine.failpoints import async_failpoint
from moraine.ingest.errors import BadBody, InProgress, KeyReused, Overloaded, WriterAway
from moraine.ingest.ledger import SETTLED, Backlog, Body, DoorLedger
from moraine.ingest.model import Arrival, Request, State
from moraine.ingest.staging import StagedFile, measure, staging_folder
from moraine.listening import Listener
from moraine.settings.ingest import IngestSettings

Chunks = AsyncIterator[bytes]
_BEAT_SECONDS = 3.0
_BACKLOG_SECONDS = 0.5
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the ledger says of a key once its bytes are there."""

    key: str
    known: Request | None
    """None: it is new."""


class SettledFeed:
    """Tells those who wait for a key: one LISTEN connection, and one query for all of them."""

    def __init__(self, url: str, ledger: DoorLedger, *, poll_interval: float = 5.0) -> None:
        self._ledger = ledger
        self._listener = Listener(url, SETTLED, poll_interval=poll_interval)
        self._waiting: dict[str, set[asyncio.Future[Request]]] = defaultdict(set)

    async def run(self) -> None:
        await self._listener.run(self._look)

    @contextlib.contextmanager
    def subscribe(self, key: str) -> Iterator[asyncio.Future[Request]]:
        future: asyncio.Future[Request] = asyncio.get_running_loop().create_future()
        self._waiting[key].add(future)
        try:
            yield future
        finally:
            self._waiting[key].discard(future)
            if not self._waiting[key]:
                del self._waiting[key]

    async def _look(self, _announced: list[str] | None) -> None:
        if not self._waiting:
            return
        for key, request in (await self._ledger.find(list(self._waiting))).items():
            if request.state.settled:
                for future in self._waiting.get(key, ()):
                    if not future.done():
                        future.set_result(request)


class Intake:
    def __init__(
        self, settings: IngestSettings, ledger: DoorLedger, feed: SettledFeed, workspace: str
    ) -> None:
        self._settings = settings
        self.ledger = ledger
        self._feed = feed
        self._workspace = workspace
        self._backlog = Backlog(0, 0, 0.0, 0)
        self._backlog_at = float("-inf")

    async def take(self, arrival: Arrival, body: bytes) -> Receipt:
        """Keep bytes durably, once for each key; they are in the table soon."""

        async def chunks() -> Chunks:
            yield body

        return await self.receive(arrival, chunks())

    async def receive(self, arrival: Arrival, chunks: Chunks) -> Receipt:
        """The same for bytes that are still arriving."""
        await self._require_room(arrival.key)
        head = bytearray()
        async for chunk in chunks:
            head += chunk
            if len(head) > self._settings.inline_bytes:
                return await self._receive_large(arrival, bytes(head), chunks)
        if not head:
            raise BadBody("The request has no body.")
        body = measure(bytes(head))
        known = await self._reserve(arrival, body)
        if isinstance(known, Request):
            return Receipt(arrival.key, _same(known, arrival, body.fingerprint))
        await async_failpoint("ingest.staged")
        return Receipt(arrival.key, None)

    async def outcome(self, receipt: Receipt, wait: float) -> Request:
        """What became of a request, as soon as that is known.

        Raises WriterAway if nobody wrote it in time, and InProgress if somebody still does.
        """
        if receipt.known is not None and receipt.known.state.settled:
            return receipt.known
        with self._feed.subscribe(receipt.key) as future:
            # It may have been settled before anybody listened.
            found = (await self.ledger.find([receipt.key])).get(receipt.key)
            if found is not None and found.state.settled:
                return found
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(future, wait)
        found = (await self.ledger.find([receipt.key])).get(receipt.key)
        if found is not None and found.state.settled:
            return found
        if found is not None and found.state is State.WRITING:
            raise InProgress()
        if found is not None and receipt.known is not None and await self.ledger.writer_is_there():
            raise InProgress()
        raise WriterAway()

    async def _receive_large(self, arrival: Arrival, head: bytes, chunks: Chunks) -> Receipt:
        known = await self._reserve(arrival, None)
        if isinstance(known, Request):
            return Receipt(arrival.key, _same(known, arrival, await _fingerprint(head, chunks)))
        try:
            await async_failpoint("ingest.reserved")
            body, staged = await self._stage(known, head, chunks)
        except BaseException:
            await asyncio.shield(self.ledger.forget(known))
            raise
        if not staged:
            raise InProgress()
        del body
        await async_failpoint("ingest.staged")
        return Receipt(arrival.key, None)

    async def _stage(self, reservation: int, head: bytes, chunks: Chunks) -> tuple[Body, bool]:
        with StagedFile(staging_folder(self._workspace)) as file:
            file.write(head)
            pending = bytearray()
            beat_at = time.monotonic() + _BEAT_SECONDS
            async for chunk in chunks:
                pending += chunk
                if len(pending) >= _WRITE_BYTES:
                    await asyncio.to_thread(file.write, bytes(pending))
                    pending.clear()
                if time.monotonic() > beat_at:
                    if not await self.ledger.still_receiving(reservation):
                        raise InProgress()
                    beat_at = time.monotonic() + _BEAT_SECONDS
            file.write(bytes(pending))
            body = await asyncio.to_thread(file.finish)
            staged = await self.ledger.stage(reservation, body)
            if not staged:
                file.discard()
            return body, staged

    async def _reserve(self, arrival: Arrival, body: Body | None) -> int | Request:
        while True:
            found = await self.ledger.reserve(arrival, body)
            if found is not None:
                return found

    async def _require_room(self, key: str) -> None:
        if time.monotonic() - self._backlog_at > _BACKLOG_SECONDS:
            self._backlog_at = time.monotonic()
            self._backlog = await self.ledger.backlog()
        full = (
            self._backlog.requests >= self._settings.max_waiting_requests
            or self._backlog.bytes >= self._settings.max_waiting_bytes
        )
        if full and not await self.ledger.find([key]):
            raise Overloaded()


def _same(known: Request, arrival: Arrival, fingerprint: str) -> Request:
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
