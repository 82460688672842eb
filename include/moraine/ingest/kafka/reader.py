"""Reads a topic into a table, each message once.

A range of offsets is read by Spark, written as data files, and committed together with the offsets
that come next. The commit is made only on a table that still says that the range is the next one;
so of two readers one commits, and a reader that was killed leaves nothing behind that counts.
Messages that do not fit are committed to the table of dead letters first: offsets never move past a
message that is in neither table.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from moraine.errors import SparkJobFailed
from moraine.failpoints import failpoint
from moraine.ingest.batches import job_tag, order_for
from moraine.ingest.kafka import executor
from moraine.ingest.kafka.broker import Broker, next_range
from moraine.ingest.kafka.clients import for_java
from moraine.ingest.kafka.executor import DEAD_LETTERS, KafkaOrder, Written
from moraine.ingest.kafka.offsets import (
    Offsets,
    Position,
    position_in,
    position_properties,
    position_summary,
)
from moraine.ingest.ledger import KeeperLedger, WriterLedger
from moraine.ingest.leftovers import remove_leftovers
from moraine.ingest.maintenance import expire_old_snapshots
from moraine.ingest.schemas import DEFAULT_COLUMNS
from moraine.ingest.tables import BATCH, IngestTables, batches_in
from moraine.log import get_logger
from moraine.settings.ingest import IngestSettings, KafkaTopicSettings
from moraine.spark import telling_apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Span:
    """What is read at once."""

    starts: Offsets
    ends: Offsets
    topic_id: str

    @property
    def messages(self) -> int:
        """At most: control records and what was compacted away count too."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


@dataclass(frozen=True, slots=True)
class Target:
    """A table as it was found, and the batch whose files it is to get."""

    table: Table
    position: Position
    batch: UUID

    @property
    def database(self) -> str:
        return ".".join(self.table.name()[:-1])

    @property
    def name(self) -> str:
        return self.table.name()[-1]


class TopicReader:
    def __init__(
        self,
        topic: str,
        settings: IngestSettings,
        tables: IngestTables,
        broker: Broker,
        ledger: WriterLedger,
        keeper: KeeperLedger,
        session: Callable[[], SparkSession],
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._kafka = settings.kafka
        self._own: KafkaTopicSettings = settings.kafka.topics[topic]
        self._tables = tables
        self._broker = broker
        self._ledger = ledger
        self._keeper = keeper
        self._session = session
        self._database, _, self._table = self._own.table.rpartition(".")
        self._letters = f"{self._table}{self._kafka.dead_letters}"
        self.active: set[UUID] = set()
        """The batches under way, whose leases somebody has to renew."""

    def read_next(self) -> int:
        """Read what is there, up to a limit; how many messages were committed."""
        rows = self._open(self._table)
        bounds = self._broker.bounds(self._topic)
        self._note_lag(rows.position.of(bounds.topic_id).next, bounds.end)
        starts, ends = next_range(
            rows.position,
            bounds,
            from_end=self._own.start == "latest",
            most=self._kafka.max_messages,
            skip_missing=self._kafka.missing_messages == "skip",
        )
        span = Span(starts, ends, bounds.topic_id)
        if not span.messages and rows.position.next:
            if self._ledger.lost(self._database, self._letters):
                self._open(self._letters)  # which removes what they left
            return 0
        begun = time.monotonic()
        committed = self._read(rows, span)
        if committed is None:
            return 0
        self._note_lag(ends, bounds.end)
        self._keeper.count_messages(
            "kafka", committed.rows, committed.letters, committed.bytes, time.monotonic() - begun
        )
        return span.messages

    def interrupt(self, batches: Iterable[UUID]) -> None:
        """Stop what the jobs of lost batches still write: they outlive a reader that is killed."""
        for batch in batches:
            with telling_apart():
                self._session().interruptTag(job_tag(batch))

    # --- One span ---------------------------------------------------------------------------

    def _read(self, rows: Target, span: Span) -> Written | None:
        """Write and commit a span. None: somebody else did, or did something else."""
        letters = self._open(self._letters)
        order = KafkaOrder(
            self._topic,
            order_for(rows.batch, rows.table),
            order_for(letters.batch, letters.table),
            self._letters_there(letters, span),
            datetime.now(UTC),
        )
        # The tables were looked at before: whoever commits after this makes the batches void.
        targets = (rows, letters)
        for target in targets:
            self._ledger.open(target.batch, target.database, target.name)
            self.active.add(target.batch)
        try:
            try:
                written = self._run(order, span) if span.messages else Written()
            except SparkJobFailed:
                self._discard(targets)  # nobody has tried to commit any of it
                raise
            failpoint("kafka.written")
            return written if self._commit_both(rows, letters, written, span) else None
        finally:
            # A batch that is still open by now is given up: the next reader looks after it.
            self.active.difference_update(target.batch for target in targets)
            for target in targets:
                self._ledger.give_up(target.batch)

    def _commit_both(self, rows: Target, letters: Target, written: Written, span: Span) -> bool:
        if written.letter_files:
            # Without them the offsets must not move.
            reached = letters.position.advanced(span.ends, span.topic_id)
            if not self._commit(letters, written.letter_files, reached, "kafka.letters_committed"):
                self._discard([rows])
                return False
        else:
            self._ledger.close(letters.batch)
        reached = rows.position.moved(span.ends, span.topic_id)
        return self._commit(rows, written.row_files, reached, "kafka.committed")

    def _commit(
        self, target: Target, files: Sequence[DataFile], reached: Position, point: str
    ) -> bool:
        """Whether this commit, and no other, has moved the table on from where it was found."""
        paths = [file.file_path for file in files]
        uuid = target.table.metadata.table_uuid

        def may_commit(table: Table) -> bool:
            return (
                table.metadata.table_uuid == uuid
                and position_in(table, self._topic) == target.position
                and self._ledger.hold(target.batch, paths)
            )

        done = self._append(target, files, reached, may_commit)
        failpoint(point)
        if done is None:
            done = self._tables.load(target.database, target.name)
            if str(target.batch) not in batches_in(done):
                log.info("kafka.span.lost", topic=self._topic, table=target.name)
                if position_in(done, self._topic) != target.position:
                    # What of ours is still under way asserts an older snapshot, and cannot land.
                    self._discard([target])
                return False
            # Else it was an attempt whose outcome was unknown.
        self._ledger.close(target.batch)
        expire_old_snapshots(
            done,
            keep=self._settings.writer.snapshots_kept,
            in_doubt=lambda: self._ledger.in_doubt(target.database, target.name, target.batch),
        )
        return True

    def _append(
        self,
        target: Target,
        files: Sequence[DataFile],
        reached: Position,
        may_commit: Callable[[Table], bool],
    ) -> Table | None:
        return self._tables.append(
            target.table,
            files,
            {**position_summary(self._topic, reached), BATCH: str(target.batch)},
            may_commit,
            attempts=self._kafka.commit_attempts,
            properties=partial(position_properties, self._topic, reached),
        )

    def _discard(self, targets: Sequence[Target]) -> None:
        """Remove what was written for tables whose commit was not tried, or refused."""
        for target in targets:
            now = self._tables.load(target.database, target.name)
            remove_leftovers(now, target.batch)
            self._ledger.close(target.batch)

    def _letters_there(self, letters: Target, span: Span) -> frozenset[tuple[int, int]]:
        """Of the span, what is among the dead letters already: by a reader that was killed before
        it committed the rows, or because the table was rolled back."""
        found: set[tuple[int, int]] = set()
        before = letters.position.of(span.topic_id).next
        for partition, start in span.starts.items():
            end = min(before.get(partition, 0), span.ends[partition])
            if start < end:
                # A topic's name has letters, digits, dots, dashes and underscores.
                wanted = (
                    f"topic = '{self._topic}' AND partition = {partition} "
                    f"AND offset >= {start} AND offset < {end}"
                )
                scan = letters.table.scan(wanted, selected_fields=("offset",))
                offsets: list[Any] = scan.to_arrow()["offset"].to_pylist()
                found.update((partition, offset) for offset in offsets)
        return frozenset(found)

    def _run(self, order: KafkaOrder, span: Span) -> Written:
        busy = [one for one, end in span.ends.items() if span.starts[one] < end]

        def told(offsets: Mapping[int, int]) -> str:
            return json.dumps({self._topic: {str(one): offsets[one] for one in busy}})

        properties = for_java(self._kafka.plain_properties)
        options = {
            **{f"kafka.{name}": value for name, value in properties.items()},
            "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({self._topic: busy}),
            "startingOffsets": told(span.starts),
            "endingOffsets": told(span.ends),
            "failOnDataLoss": str(self._kafka.missing_messages == "fail").lower(),
        }
        function = partial(executor.work_in_spark, order)
        total = Written()
        with telling_apart():
            session = self._session()
            session.addTag(job_tag(order.rows.batch))
            messages = session.read.format("kafka").options(**options).load()
            wanted = messages.select("partition", "offset", "value")
            try:
                results = wanted.mapInArrow(function, executor.RESULT_DDL).collect()
            finally:
                session.removeTag(job_tag(order.rows.batch))
        for row in results:
            total.add(pickle.loads(bytes(row.result)))  # noqa: S301 - our own executors'
        return total

    # --- Tables -----------------------------------------------------------------------------

    def _open(self, name: str) -> Target:
        """The table, once nothing is left of readers that were killed."""
        target = self._find(name)
        lost = self._ledger.lost(self._database, name)
        if not lost:
            return target
        # After this commit, or whoever's came first, theirs cannot come any more.
        self._append(
            target,
            [],
            target.position,
            lambda table: position_in(table, self._topic) == target.position,
        )
        found = self._find(name)
        self.interrupt(lost)
        for batch in lost:
            remove_leftovers(found.table, batch)
            self._ledger.close(batch)
        log.info("kafka.leftovers.removed", table=name, batches=len(lost))
        return found

    def _find(self, name: str) -> Target:
        if name != self._table:
            table = self._tables.load_or_create(self._database, name, DEAD_LETTERS)
        elif self._own.auto_create:
            table = self._tables.load_or_create(self._database, name, DEFAULT_COLUMNS)
        else:
            table = self._tables.load(self._database, name)
        return Target(table, position_in(table, self._topic), uuid4())

    def _note_lag(self, reached: Mapping[int, int], ends: Offsets) -> None:
        self._keeper.note_lags(self._topic, self._own.table, reached, ends)
