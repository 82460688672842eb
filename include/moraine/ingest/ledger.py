"""The ledger of what was handed in: the only place that speaks SQL about it.

Doors reserve a key, then keep the bytes; writers claim what is kept, commit it to tables, and
settle it. A repeated statement finds what the first one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from moraine.ingest.model import Applied, Arrival, Request, State
from moraine.queries import AsyncQueries, Queries
from moraine.sql import load_queries

STAGED, SETTLED = "moraine_ingest_staged", "moraine_ingest_settled"
"""What is announced: that there is something to write, and that something was written."""
WRITER = "moraine-writer"
"""How a writer's connections are called: by them a door sees whether there is one."""
# So long a key is kept for a sender that says nothing any more; after a crash, its next try waits
# for that. To lose it is no harm: whoever comes to the end first has sent the bytes.
_RECEIVING = timedelta(seconds=10)
# What Spark failed on makes way for others; each pause is four times the one before.
_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(hours=1)


def _prepare_queries() -> dict[str, bytes]:
    expired = "({of}expires_at IS NOT NULL AND {of}expires_at <= now())"
    forgotten = (
        f"({expired} OR {{of}}state = 'rejected'"
        " OR ({of}state = 'receiving' AND {of}lease_expires_at <= now()))"
    )
    parts = {
        "row": ", ".join(f"ingest_ledger.{field.name}" for field in fields(Request)),
        "due": "(paused_until IS NULL OR paused_until <= now())",
        "expired": expired.format(of=""),
        "forgotten": forgotten.format(of=""),
        "old_forgotten": forgotten.format(of="old."),
        "staged_channel": STAGED,
        "settled_channel": SETTLED,
    }
    queries = load_queries("moraine.ingest", "queries.sql")
    for part, text in parts.items():
        mark = f"{{{part}}}".encode()
        queries = {name: query.replace(mark, text.encode()) for name, query in queries.items()}
    return queries


_SQL = _prepare_queries()


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes that have arrived. Small ones are kept in the ledger, others in a file."""

    fingerprint: str
    size: int
    lines: int
    inline: bytes | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is waiting to be written."""

    requests: int
    bytes: int
    age: float
    failing: int
    """Spark has failed on them."""


class DoorLedger:
    """What a door does."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._queries = AsyncQueries(pool, _SQL)

    async def reserve(self, arrival: Arrival, body: Body | None) -> int | Request | None:
        """The number of a new reservation, or what is known of the key. With a body it is staged
        at once. None: it was accepted by somebody else just now; ask again."""
        rows = await self._queries.run(
            "reserve",
            **asdict(arrival),
            state=State.STAGED.value if body else State.RECEIVING.value,
            fingerprint=body.fingerprint if body else None,
            location=body.location if body else None,
            bytes=body.size if body else 0,
            lines=body.lines if body else 0,
            body=body.inline if body else None,
            lease=_RECEIVING,
        )
        if not rows:
            return None
        row = rows[0]
        row.pop("told")
        new_id = row.pop("new_id")
        return int(new_id) if new_id is not None else Request(**row)

    async def still_receiving(self, reservation: int) -> bool:
        return bool(await self._queries.run("receive", id=reservation, lease=_RECEIVING))

    async def stage(self, reservation: int, body: Body) -> bool:
        """Now the bytes are durable. False: the reservation was lost to somebody else."""
        rows = await self._queries.run(
            "stage",
            id=reservation,
            fingerprint=body.fingerprint,
            location=body.location,
            bytes=body.size,
            lines=body.lines,
        )
        return bool(rows)

    async def forget(self, reservation: int) -> None:
        await self._queries.run("forget", id=reservation)

    async def find(self, keys: Sequence[str]) -> dict[str, Request]:
        rows = await self._queries.run("find", keys=list(keys))
        return {row["key"]: Request(**row) for row in rows}

    async def backlog(self) -> Backlog:
        return Backlog(**(await self._queries.run("backlog"))[0])

    async def writer_is_there(self) -> bool:
        return bool((await self._queries.run("writers"))[0]["alive"])

    async def count_replay(self, door: str) -> None:
        await self._queries.run("count_replay", door=door)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    requests: int
    bytes: int
    rows: int


class WriterLedger:
    """What a writer does. `lease` is how long a batch counts as alive without a heartbeat,
    `lifetime` how long a key is known once it is settled."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        owner: str,
        *,
        lease: timedelta,
        lifetime: timedelta,
    ) -> None:
        self._queries = Queries(pool, _SQL)
        self._owner = owner
        self._lease = lease
        self._lifetime = lifetime

    def next_table(self, busy: Iterable[str]) -> tuple[str, str] | None:
        """The table whose oldest request has waited for longest, but for those in `busy`."""
        rows = self._queries.run("next_table", busy=list(busy))
        return (rows[0]["database_name"], rows[0]["table_name"]) if rows else None

    def claim(self, batch: UUID, database: str, table: str, limits: BatchLimits) -> list[Request]:
        rows = self._queries.run(
            "claim",
            batch=batch,
            owner=self._owner,
            database=database,
            table=table,
            lease=self._lease,
            most_requests=limits.requests,
            most_bytes=limits.bytes,
            most_rows=limits.rows,
        )
        return sorted((Request(**row) for row in rows), key=lambda request: request.id)

    def open(self, batch: UUID, database: str, table: str) -> None:
        """A batch of a door that has no requests."""
        self._queries.run(
            "open_batch",
            batch=batch,
            owner=self._owner,
            database=database,
            table=table,
            lease=self._lease,
        )

    def bodies(self, ids: Iterable[int]) -> dict[int, bytes]:
        rows = self._queries.run("bodies", ids=list(ids))
        return {row["id"]: bytes(row["body"]) for row in rows}

    def heartbeat(self, batches: Iterable[UUID]) -> None:
        self._queries.run("heartbeat", batches=list(batches), lease=self._lease)

    def hold(self, batch: UUID, files: Sequence[str]) -> bool:
        """Whether the batch is still ours. If so, it is known to be about to commit the files."""
        rows = self._queries.run("hold", batch=batch, files=Jsonb(list(files)), lease=self._lease)
        return bool(rows)

    def finalize(self, batch: UUID, outcomes: Iterable[Applied]) -> int:
        """How many of these were still ours to settle."""
        given = Jsonb([asdict(outcome) for outcome in outcomes])
        rows = self._queries.run("finalize", batch=batch, outcomes=given, lifetime=self._lifetime)
        return len(rows)

    def reject(self, batch: UUID, errors: dict[int, dict[str, Any]]) -> int:
        given = Jsonb([{"id": id, "error": error} for id, error in errors.items()])
        rows = self._queries.run("reject", batch=batch, outcomes=given, lifetime=self._lifetime)
        return len(rows)

    def release(self, batch: UUID, *, blamed: bool = False) -> None:
        """What of the batch is not settled waits again. `blamed`: one of them may be what makes
        Spark fail, so each is tried alone."""
        self._queries.run(
            "release", batch=batch, blamed=blamed, pause=_PAUSE, longest_pause=_LONGEST_PAUSE
        )

    def close(self, batch: UUID) -> None:
        self._queries.run("close_batch", batch=batch)

    def give_up(self, batch: UUID) -> None:
        """Nobody knows whether the batch was committed: let another find out."""
        self._queries.run("give_up_batch", batch=batch)

    def lose_silent(self) -> list[UUID]:
        """Take apart batches whose writer is silent. Which they were."""
        return [row["batch"] for row in self._queries.run("lose_batches")]

    def lost_files(self, database: str, table: str, before: datetime) -> dict[UUID, list[str]]:
        """Files of lost batches, which nobody can commit after a commit that came later."""
        rows = self._queries.run("lost_files", database=database, table=table, before=before)
        return {row["batch"]: row["files"] for row in rows}

    def lost(self, database: str, table: str) -> list[UUID]:
        rows = self._queries.run("lost_batches", database=database, table=table)
        return [row["batch"] for row in rows]

    def in_doubt(self, database: str, table: str, batch: UUID) -> bool:
        """Whether another batch than this may have been committed without the ledger's knowing."""
        rows = self._queries.run("in_doubt", database=database, table=table, batch=batch)
        return bool(rows[0]["in_doubt"])

    def count_commit(self, door: str, seconds: float) -> None:
        self._queries.run("count_commit", door=door, seconds=seconds)


class KeeperLedger:
    """Cleaning and counting."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._queries = Queries(pool, _SQL)

    def remove_expired(self, lifetime: timedelta, grace: timedelta, limit: int) -> list[str]:
        """Forget keys that are over."""
        rows = self._queries.run("remove_expired", lifetime=lifetime, grace=grace, limit=limit)
        return [row["key"] for row in rows]

    def waiting_files(self) -> set[str]:
        """The files whose bytes are still to be written."""
        return {row["location"] for row in self._queries.run("waiting_files")}

    def totals(self) -> list[dict[str, Any]]:
        return self._queries.run("totals")

    def commits(self) -> list[dict[str, Any]]:
        return self._queries.run("commits")

    def lags(self) -> list[dict[str, Any]]:
        return self._queries.run("lags")

    def backlog(self) -> Backlog:
        return Backlog(**self._queries.run("backlog")[0])

    def count_messages(
        self, door: str, rows: int, rejected: int, bytes: int, seconds: float
    ) -> None:
        """What a door that has no keys has committed."""
        self._queries.run(
            "count_messages",
            door=door,
            rows=rows,
            rejected=rejected,
            bytes=bytes,
            seconds=seconds,
        )

    def note_lags(
        self, topic: str, table: str, reached: Mapping[int, int], ends: Mapping[int, int]
    ) -> None:
        """What is read next of each partition, and where it ends."""
        partitions = [
            {"partition": partition, "next": reached.get(partition, 0), "end": end}
            for partition, end in ends.items()
        ]
        self._queries.run("note_lags", topic=topic, table=table, partitions=Jsonb(partitions))
