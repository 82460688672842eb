"""The records of keyed requests: the only place that speaks SQL about them."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from moraine.idempotency.model import Claim, Record, Response, Scope
from moraine.queries import AsyncQueries
from moraine.settings import IdempotencySettings
from moraine.sql import load_queries

_FAST = 1  # of zlib: a second of it packs some hundred megabytes


def _prepare_queries() -> dict[str, bytes]:
    this = " AND ".join(f"{name} = %({name})s" for name in Scope._fields)
    parts = {
        "this": this,
        "held": f"{this} AND owner = %(owner)s AND attempts = %(attempts)s AND http_status IS NULL",
        "record": "payload_hash, intent, attempts, http_status, response_headers, response_body, "
        "http_status IS NULL AND lease_expires_at <= now() AS abandoned",
    }
    queries = load_queries("moraine.idempotency", "queries.sql")
    for part, text in parts.items():
        mark = f"{{{part}}}".encode()
        queries = {name: query.replace(mark, text.encode()) for name, query in queries.items()}
    return queries


_SQL = _prepare_queries()


@asynccontextmanager
async def open_async_pool(url: str, *, size: int) -> AsyncIterator[AsyncConnectionPool[Any]]:
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
        url,
        min_size=1,
        max_size=size,
        timeout=5.0,
        open=False,
        kwargs={"autocommit": True, "application_name": "moraine", "connect_timeout": 5},
    )
    async with pool:
        yield pool


def count_records(pool: ConnectionPool[Any]) -> dict[str, int]:
    """How many keys are in which state, for the metrics."""
    with pool.connection() as connection:
        return dict(connection.execute(_SQL["counts"]).fetchall())


class RecordStore:
    """`lease` is how long an execution counts as alive without a heartbeat, `keep` how long a key
    is known."""

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        *,
        lease: timedelta,
        keep: timedelta,
        most_bytes: int,
    ) -> None:
        # Each statement may be repeated: a reservation finds itself, any other finds no row.
        self._queries = AsyncQueries(pool, _SQL)
        self._lease = lease
        self._keep = keep
        self._most_bytes = most_bytes

    @classmethod
    def of(cls, pool: AsyncConnectionPool[Any], settings: IdempotencySettings) -> RecordStore:
        return cls(
            pool,
            lease=settings.lease,
            keep=settings.lifetime + settings.grace,
            most_bytes=settings.max_stored_bytes,
        )

    async def reserve(
        self, scope: Scope, payload_hash: str, intent: dict[str, Any]
    ) -> Claim | Record | None:
        """Accept a new key, or find what is known of it. None: it was accepted by somebody else
        just now; ask again."""
        owner = str(uuid4())
        rows = await self._queries.run(
            "reserve",
            **scope._asdict(),
            payload_hash=payload_hash,
            intent=Jsonb(intent),
            owner=owner,
            lease=self._lease,
            keep=self._keep,
        )
        if not rows:
            return None
        is_new = rows[0].pop("is_new")
        return Claim(scope, owner, 1) if is_new else _record(rows[0])

    async def find(self, scope: Scope) -> Record | None:
        rows = await self._queries.run("find", **scope._asdict())
        return _record(rows[0]) if rows else None

    async def take_over(self, scope: Scope, attempts: int) -> Claim | None:
        """Take an abandoned key, as it was seen after so many attempts."""
        owner = str(uuid4())
        rows = await self._queries.run(
            "take_over", **scope._asdict(), attempts=attempts, owner=owner, lease=self._lease
        )
        return Claim(scope, owner, rows[0]["attempts"]) if rows else None

    async def finalize(self, claim: Claim, response: Response) -> bool:
        """Keep the outcome. False: somebody else has taken the key over."""
        packed = None if response.rest else zlib.compress(response.body, _FAST)
        if packed is not None and len(packed) > self._most_bytes:
            packed = None
        return await self._change(
            "finalize",
            claim,
            status=response.status,
            headers=Jsonb(dict(response.headers)),
            body=packed,
        )

    async def abandon(self, claim: Claim) -> bool:
        return await self._change("abandon", claim)

    async def release(self, claim: Claim) -> bool:
        return await self._change("release", claim)

    async def heartbeat(self, claims: Iterable[Claim]) -> None:
        owners = [claim.owner for claim in claims]
        await self._queries.run("heartbeat", owners=owners, lease=self._lease)

    async def abandoned(
        self, realm: str, *, quiet: timedelta, limit: int
    ) -> list[tuple[Scope, dict[str, Any], int]]:
        """Keys that nobody has come back for, with their intents and attempts."""
        rows = await self._queries.run("abandoned", realm_id=realm, quiet=quiet, limit=limit)
        return [
            (Scope(*(row[name] for name in Scope._fields)), row["intent"], row["attempts"])
            for row in rows
        ]

    async def remove_expired(self, limit: int) -> int:
        return len(await self._queries.run("remove_expired", limit=limit))

    async def ping(self) -> None:
        await self._queries.run("ping")

    async def _change(self, name: str, claim: Claim, **parameters: Any) -> bool:
        rows = await self._queries.run(
            name,
            **claim.scope._asdict(),
            owner=claim.owner,
            attempts=claim.attempts,
            **parameters,
        )
        return bool(rows)


def _record(row: dict[str, Any]) -> Record:
    if row["response_body"] is not None:
        row["response_body"] = zlib.decompress(row["response_body"])
    return Record(**row)
