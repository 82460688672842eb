"""The records of keyed requests: the only place that speaks SQL about them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from moraine.idempotency.model import KeyClaim, Record, Response, Scope
from moraine.ledger.queries import AsyncQueries, Queries, load_queries
from moraine.settings import IdempotencySettings

_FAST = 1  # of zlib: it compresses some hundred megabytes a second
_SQL = load_queries("moraine.idempotency", "queries.sql")


def count_records(pool: ConnectionPool[Any]) -> dict[str, int]:
    """How many keys are in which state, for the metrics."""
    return {row["state"]: row["records"] for row in Queries(pool, _SQL).run("counts")}


@dataclass(frozen=True, slots=True, repr=False)
class RecordStore:
    """`lease` is how long an execution counts as alive without a heartbeat, `keep` how long a key
    is remembered."""

    pool: AsyncConnectionPool[Any]
    _: KW_ONLY
    lease: timedelta
    keep: timedelta
    max_bytes: int

    @property
    def _queries(self) -> AsyncQueries:
        # Every statement is idempotent: a retried reservation finds itself, others find no row.
        return AsyncQueries(self.pool, _SQL)

    @classmethod
    def of(cls, pool: AsyncConnectionPool[Any], settings: IdempotencySettings) -> RecordStore:
        return cls(
            pool,
            lease=settings.lease,
            keep=settings.lifetime + settings.grace,
            max_bytes=settings.max_stored_bytes,
        )

    async def reserve(
        self, scope: Scope, payload_hash: str, intent: dict[str, Any]
    ) -> KeyClaim | Record | None:
        """Accept a new key, or find what is known of it. None: another request accepted it at the
        same moment; ask again."""
        owner = str(uuid4())
        rows = await self._queries.run(
            "reserve",
            **scope._asdict(),
            payload_hash=payload_hash,
            intent=Jsonb(intent),
            owner=owner,
            lease=self.lease,
            keep=self.keep,
        )
        if not rows:
            return None
        is_new = rows[0].pop("is_new")
        return KeyClaim(scope, owner, 1) if is_new else _record(rows[0])

    async def find(self, scope: Scope) -> Record | None:
        rows = await self._queries.run("find", **scope._asdict())
        return _record(rows[0]) if rows else None

    async def take_over(self, scope: Scope, attempts: int) -> KeyClaim | None:
        """Take over an abandoned key, if it still has this number of attempts."""
        owner = str(uuid4())
        rows = await self._queries.run(
            "take_over", **scope._asdict(), attempts=attempts, owner=owner, lease=self.lease
        )
        return KeyClaim(scope, owner, rows[0]["attempts"]) if rows else None

    async def finalize(self, claim: KeyClaim, response: Response) -> bool:
        """Write the outcome. False: another process has taken the key over."""
        packed = None if response.rest else zlib.compress(response.body, _FAST)
        if packed is not None and len(packed) > self.max_bytes:
            packed = None
        return await self._change(
            "finalize",
            claim,
            status=response.status,
            headers=Jsonb(dict(response.headers)),
            body=packed,
        )

    async def abandon(self, claim: KeyClaim) -> bool:
        return await self._change("abandon", claim)

    async def release(self, claim: KeyClaim) -> bool:
        return await self._change("release", claim)

    async def heartbeat(self, claims: Iterable[KeyClaim]) -> None:
        owners = [claim.owner for claim in claims]
        await self._queries.run("heartbeat", owners=owners, lease=self.lease)

    async def abandoned(
        self, realm: str, *, quiet: timedelta, limit: int
    ) -> list[tuple[Scope, dict[str, Any], int]]:
        """Keys without an outcome whose lease expired `quiet` ago, with intents and attempts."""
        rows = await self._queries.run("abandoned", realm_id=realm, quiet=quiet, limit=limit)
        return [
            (Scope(*(row[name] for name in Scope._fields)), row["intent"], row["attempts"])
            for row in rows
        ]

    async def remove_expired(self, limit: int) -> int:
        return len(await self._queries.run("remove_expired", limit=limit))

    async def ping(self) -> None:
        await self._queries.run("ping")

    async def _change(self, name: str, claim: KeyClaim, **parameters: Any) -> bool:
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
