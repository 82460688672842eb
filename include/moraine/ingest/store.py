"""The ledger of ingest requests: the only place that speaks SQL about them.

Doors reserve a key, then store the bytes; writers claim stored requests, commit them to tables and
settle them. Every statement is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from moraine.ingest.model import (
    AppliedRequest,
    Arrival,
    Backlog,
    BatchLimits,
    IngestRequest,
    StagedBody,
    State,
    TableId,
    Taken,
)
from moraine.ledger.queries import AsyncQueries, Queries, load_queries

STAGED, SETTLED = "moraine_ingest_staged", "moraine_ingest_settled"
"""The channels on which the statements announce that a request waits, and that one is settled."""
WRITER = "moraine-writer"
"""The application name of a writer's connection: a door sees by it whether a writer runs."""
# How long a key is reserved for a silent sender; after a crash, its retry waits for that. If the
# reservation is lost, no harm is done: the first sender that completes its body gets the key.
_RECEIVING = timedelta(seconds=10)
# Requests on which Spark failed pause and let others pass.
_PAUSE, _MAX_PAUSE = timedelta(seconds=1), timedelta(hours=1)
_SQL = load_queries("moraine.ingest")


class DoorStore:
    """Used by doors."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._queries = AsyncQueries(pool, _SQL)

    async def reserve(
        self, arrival: Arrival, body: StagedBody | None
    ) -> int | IngestRequest | None:
        """The id of a new reservation, or the request known by the key. With a body it is staged at
        once. None: another caller reserved the key at the same moment; ask again."""
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
        row.pop("announced")
        new_id = row.pop("new_id")
        return int(new_id) if new_id is not None else IngestRequest(**row)

    async def still_receiving(self, reservation: int, size: int) -> bool:
        """`size` bytes have arrived. False: another sender took the reservation over."""
        rows = await self._queries.run("receive", id=reservation, lease=_RECEIVING, bytes=size)
        return bool(rows)

    async def stage(self, reservation: int, body: StagedBody) -> bool:
        """The bytes are durable. False: another sender took the reservation over."""
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

    async def find(self, keys: Sequence[str]) -> dict[str, IngestRequest]:
        rows = await self._queries.run("find", keys=list(keys))
        return {row["key"]: IngestRequest(**row) for row in rows}

    async def find_of(
        self, principal: str, client_key: str, database: str | None, table: str | None
    ) -> IngestRequest | None:
        """The newest request that a principal sent with this key, to any table or to one."""
        rows = await self._queries.run(
            "find_of", principal=principal, client_key=client_key, database=database, table=table
        )
        return IngestRequest(**rows[0]) if rows else None

    async def room(self) -> dict[str, Taken]:
        """What each database takes of the room that there is."""
        rows = await self._queries.run("room")
        return {row["database_name"]: Taken(row["requests"], row["bytes"]) for row in rows}

    async def writer_is_running(self) -> bool:
        return bool((await self._queries.run("writers"))[0]["alive"])

    async def count_replay(self, door: str) -> None:
        await self._queries.run("count_replay", door=door)


class WriterStore:
    """Used by writers. `lease` is how long a batch is alive without a heartbeat, `lifetime` how
    long a settled key is known."""

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
        """The table whose oldest request has waited longest, except those in `busy`."""
        rows = self._queries.run("next_table", busy=list(busy))
        return (rows[0]["database_name"], rows[0]["table_name"]) if rows else None

    def claim(
        self, batch: UUID, database: str, table: str, limits: BatchLimits
    ) -> list[IngestRequest]:
        rows = self._queries.run(
            "claim",
            batch=batch,
            owner=self._owner,
            database=database,
            table=table,
            lease=self._lease,
            **asdict(limits),
        )
        return sorted((IngestRequest(**row) for row in rows), key=lambda request: request.id)

    def open(self, batch: UUID, database: str, table: str) -> None:
        """Open a batch for a door without requests."""
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
        """Record the files that the batch is about to commit. False: the batch was lost."""
        rows = self._queries.run("hold", batch=batch, files=Jsonb(list(files)), lease=self._lease)
        return bool(rows)

    def finalize(self, batch: UUID, outcomes: Iterable[AppliedRequest]) -> int:
        """Returns how many of the requests still belonged to the batch."""
        given = Jsonb([asdict(outcome) for outcome in outcomes])
        rows = self._queries.run("finalize", batch=batch, outcomes=given, lifetime=self._lifetime)
        return len(rows)

    def reject(self, batch: UUID, errors: dict[int, dict[str, Any]]) -> int:
        given = Jsonb([{"id": id, "error": error} for id, error in errors.items()])
        rows = self._queries.run("reject", batch=batch, outcomes=given, lifetime=self._lifetime)
        return len(rows)

    def release(
        self, batch: UUID, failure: Mapping[str, str] | None = None, *, blamed: bool = False
    ) -> None:
        """Stage the unsettled requests of the batch again. `blamed`: one of them may be the reason
        why Spark fails, so each is tried alone."""
        self._queries.run(
            "release",
            batch=batch,
            error=_json(failure),
            blamed=blamed,
            pause=_PAUSE,
            max_pause=_MAX_PAUSE,
        )

    def close(self, batch: UUID) -> None:
        self._queries.run("close_batch", batch=batch)

    def give_up(self, batch: UUID, failure: Mapping[str, str] | None = None) -> None:
        """It is unknown whether the batch was committed: the next writer finds out."""
        self._queries.run("give_up_batch", batch=batch, error=_json(failure))

    def lose_silent(self) -> list[UUID]:
        """Take over batches whose lease has expired, and return their ids."""
        return [row["batch"] for row in self._queries.run("lose_batches")]

    def lost_files(self, database: str, table: str, before: datetime) -> dict[UUID, list[str]]:
        """Files of batches lost before `before`: a later commit makes theirs impossible."""
        rows = self._queries.run("lost_files", database=database, table=table, before=before)
        return {row["batch"]: row["files"] for row in rows}

    def lost(self, database: str, table: str) -> list[UUID]:
        rows = self._queries.run("lost_batches", database=database, table=table)
        return [row["batch"] for row in rows]

    def in_doubt(self, database: str, table: str, batch: UUID) -> bool:
        """Whether a batch other than this one may have been committed without a record here."""
        rows = self._queries.run("in_doubt", database=database, table=table, batch=batch)
        return bool(rows[0]["in_doubt"])

    def count_commit(self, door: str, seconds: float) -> None:
        self._queries.run("count_commit", door=door, seconds=seconds)


def _json(failure: Mapping[str, str] | None) -> Jsonb | None:
    return Jsonb(dict(failure)) if failure else None


class TableStore:
    """Tables that ingest created, and its commits to them. A table is known by name and uuid."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._queries = Queries(pool, _SQL)

    def note_made(self, table: TableId) -> None:
        self._queries.run("note_made", **asdict(table))

    def note_commit(self, table: TableId, snapshot: int, commit: UUID) -> None:
        """Does nothing for a table that ingest did not create."""
        self._queries.run("note_snapshot", **asdict(table), snapshot=snapshot, commit=commit)

    def commits(self, table: TableId) -> dict[int, UUID]:
        rows = self._queries.run("snapshots", **asdict(table))
        return {row["snapshot_id"]: row["commit_uuid"] for row in rows}

    def forget_commits(self, table: TableId, kept: Sequence[int]) -> None:
        """Forget all commits except those of the snapshots that are kept."""
        self._queries.run("forget_snapshots", **asdict(table), kept=list(kept))


class HousekeepingStore:
    """Removes expired keys, and counts for the metrics."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._queries = Queries(pool, _SQL)

    def remove_expired(self, lifetime: timedelta, grace: timedelta, limit: int) -> list[str]:
        rows = self._queries.run("remove_expired", lifetime=lifetime, grace=grace, limit=limit)
        return [row["key"] for row in rows]

    def waiting_files(self) -> set[str]:
        """Staged files that are still to be written."""
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
        """Count a commit of a door without keys."""
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
        """Record the next offset and the end of each partition."""
        partitions = [
            {"partition": partition, "next": reached.get(partition, 0), "end": end}
            for partition, end in ends.items()
        ]
        self._queries.run("note_lags", topic=topic, table=table, partitions=Jsonb(partitions))
