"""Reads topics into tables, each message exactly once.

Spark reads a range of offsets and writes it as data files, which are committed together with the
next offsets. The commit is only made on a table whose position is still the start of the range; so
of two readers one commits, and a killed reader leaves nothing that counts. Messages that do not fit
are committed to the table of dead letters first: offsets never move past a message that is in
neither table.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from moraine.errors import SparkJobFailed
from moraine.failpoints import failpoint
from moraine.ingest.kafka.broker import Broker
from moraine.ingest.kafka.job import DEAD_LETTERS, KafkaOrder, Written, read_on_spark
from moraine.ingest.kafka.model import (
    Offsets,
    Position,
    Span,
    next_range,
    position_in,
    position_properties,
    position_summary,
)
from moraine.ingest.store import HousekeepingStore, WriterStore
from moraine.ingest.tables.cleanup import expire_old_snapshots, remove_lost_files
from moraine.ingest.tables.schemas import DEFAULT_COLUMNS
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.tables.snapshots import BATCH, batches_in
from moraine.ingest.writing.job import interrupt_jobs, order_for
from moraine.ingest.writing.loop import LeasedLoop, Work
from moraine.log import get_logger
from moraine.settings.ingest import IngestSettings
from moraine.spark.session import SessionFactory

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A table with its position, and the batch whose files it gets."""

    table: Table
    position: Position
    batch: UUID

    @property
    def database(self) -> str:
        return ".".join(self.table.name()[:-1])

    @property
    def name(self) -> str:
        return self.table.name()[-1]


@dataclass(repr=False)
class TopicReader:
    topic: str
    settings: IngestSettings
    tables: IngestTables
    broker: Broker
    store: WriterStore
    housekeeping: HousekeepingStore
    session: SessionFactory
    active: set[UUID] = field(default_factory=set)
    """The batches in progress, whose leases must be renewed."""

    def __post_init__(self) -> None:
        self._kafka = self.settings.kafka
        self._own = self._kafka.topics[self.topic]
        self._database, _, self._table = self._own.table.rpartition(".")
        self._letters = f"{self._table}{self._kafka.dead_letters}"

    def read_next(self) -> int:
        """Read the next messages, up to a limit, and return how many were committed."""
        rows = self._open(self._table)
        bounds = self.broker.bounds(self.topic)
        self._note_lag(rows.position.of(bounds.topic_id).next, bounds.end)
        span = next_range(
            rows.position,
            bounds,
            from_end=self._own.start == "latest",
            max_messages=self._kafka.max_messages,
            skip_missing=self._kafka.missing_messages == "skip",
        )
        if not span.messages and rows.position.next:
            if self.store.lost(self._database, self._letters):
                self._open(self._letters)  # removes their files
            return 0
        begun = time.monotonic()
        committed = self._read(rows, span)
        if committed is None:
            return 0
        self._note_lag(span.ends, bounds.end)
        self.housekeeping.count_messages(
            "kafka", committed.rows, committed.letters, committed.bytes, time.monotonic() - begun
        )
        return span.messages

    # --- One span ---------------------------------------------------------------------------

    def _read(self, rows: KafkaTarget, span: Span) -> Written | None:
        """Write and commit a span. None: another reader moved the table's position."""
        letters = self._open(self._letters)
        order = KafkaOrder(
            self.topic,
            order_for(rows.batch, rows.table),
            order_for(letters.batch, letters.table),
            self._letters_there(letters, span),
            datetime.now(UTC),
        )
        # The tables were loaded before: a commit after that makes the batches void.
        targets = (rows, letters)
        for target in targets:
            self.store.open(target.batch, target.database, target.name)
            self.active.add(target.batch)
        try:
            try:
                written = Written()
                if span.messages:
                    written = read_on_spark(self.session(), order, self._kafka, span)
            except SparkJobFailed:
                self._discard(targets)  # no commit was tried
                raise
            failpoint("kafka.written")
            return written if self._commit_both(rows, letters, written, span) else None
        finally:
            # A batch that is still open is given up: the next reader cleans it up.
            self.active.difference_update(target.batch for target in targets)
            for target in targets:
                self.store.give_up(target.batch)

    def _commit_both(
        self, rows: KafkaTarget, letters: KafkaTarget, written: Written, span: Span
    ) -> bool:
        if written.letter_files:
            # The offsets must not move before these are committed.
            reached = letters.position.advanced(span.ends, span.topic_id)
            if not self._commit(letters, written.letter_files, reached, "kafka.letters_committed"):
                self._discard([rows])
                return False
        else:
            self.store.close(letters.batch)
        reached = rows.position.moved(span.ends, span.topic_id)
        return self._commit(rows, written.row_files, reached, "kafka.committed")

    def _commit(
        self, target: KafkaTarget, files: Sequence[DataFile], reached: Position, point: str
    ) -> bool:
        """Whether this commit, and no other, moved the table from its position."""
        paths = [file.file_path for file in files]
        uuid = target.table.metadata.table_uuid

        def may_commit(table: Table) -> bool:
            return (
                table.metadata.table_uuid == uuid
                and position_in(table, self.topic) == target.position
                and self.store.hold(target.batch, paths)
            )

        done = self._append(target, files, reached, may_commit)
        failpoint(point)
        if done is None:
            done = self.tables.load(target.database, target.name)
            if str(target.batch) not in batches_in(done):
                log.info("kafka.span.lost", topic=self.topic, table=target.name)
                if position_in(done, self.topic) != target.position:
                    # An attempt that is still in flight asserts an older snapshot, and cannot land.
                    self._discard([target])
                return False
            # Otherwise an attempt with an unknown outcome had landed.
        self.store.close(target.batch)
        expire_old_snapshots(
            self.tables,
            done,
            keep=self.settings.writer.snapshots_kept,
            in_doubt=lambda: self.store.in_doubt(target.database, target.name, target.batch),
        )
        return True

    def _append(
        self,
        target: KafkaTarget,
        files: Sequence[DataFile],
        reached: Position,
        may_commit: Callable[[Table], bool],
    ) -> Table | None:
        return self.tables.append(
            target.table,
            files,
            {**position_summary(self.topic, reached), BATCH: str(target.batch)},
            may_commit,
            attempts=self._kafka.commit_attempts,
            properties=partial(position_properties, self.topic, reached),
        )

    def _discard(self, targets: Sequence[KafkaTarget]) -> None:
        """Remove the files of tables whose commit was not tried, or refused."""
        for target in targets:
            now = self.tables.load(target.database, target.name)
            remove_lost_files(now, target.batch)
            self.store.close(target.batch)

    def _letters_there(self, letters: KafkaTarget, span: Span) -> frozenset[tuple[int, int]]:
        """Messages of the span that are dead letters already: because a reader was killed before it
        committed the rows, or because the table was rolled back."""
        found: set[tuple[int, int]] = set()
        before = letters.position.of(span.topic_id).next
        for partition, start in span.starts.items():
            end = min(before.get(partition, 0), span.ends[partition])
            if start < end:
                # A topic's name has only letters, digits, dots, dashes and underscores.
                wanted = (
                    f"topic = '{self.topic}' AND partition = {partition} "
                    f"AND offset >= {start} AND offset < {end}"
                )
                scan = letters.table.scan(wanted, selected_fields=("offset",))
                offsets: list[Any] = scan.to_arrow()["offset"].to_pylist()
                found.update((partition, offset) for offset in offsets)
        return frozenset(found)

    # --- Tables -----------------------------------------------------------------------------

    def _open(self, name: str) -> KafkaTarget:
        """The table, after the files of killed readers are removed."""
        target = self._find(name)
        lost = self.store.lost(self._database, name)
        if not lost:
            return target
        # After this commit, or another one that came first, theirs cannot land.
        self._append(
            target,
            [],
            target.position,
            lambda table: position_in(table, self.topic) == target.position,
        )
        found = self._find(name)
        interrupt_jobs(self.session(), lost)
        for batch in lost:
            remove_lost_files(found.table, batch)
            self.store.close(batch)
        log.info("kafka.lost_files.removed", table=name, batches=len(lost))
        return found

    def _find(self, name: str) -> KafkaTarget:
        if name != self._table:
            table = self.tables.load_or_create(self._database, name, DEAD_LETTERS)
        elif self._own.auto_create:
            table = self.tables.load_or_create(self._database, name, DEFAULT_COLUMNS)
        else:
            table = self.tables.load(self._database, name)
        self.tables.check_writable(table)
        return KafkaTarget(table, position_in(table, self.topic), uuid4())

    def _note_lag(self, reached: Mapping[int, int], ends: Offsets) -> None:
        self.housekeeping.note_lags(self.topic, self._own.table, reached, ends)


class KafkaReader(LeasedLoop):
    """Reads all topics, one after the other."""

    def __init__(
        self,
        readers: Mapping[str, TopicReader],
        store: WriterStore,
        *,
        poll_interval: timedelta,
        lease: timedelta,
    ) -> None:
        super().__init__(
            store,
            list(readers.values()),
            lease=lease,
            parallel=1,
            poll_interval=poll_interval,
            idle_pause=poll_interval,
            first_pause=poll_interval * 2,
            max_pause=timedelta(seconds=30),
        )
        self._readers = readers
        self._turns = deque(readers)

    def run(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> int:
        """As in the loop. At the end it raises the error of a topic whose last attempt failed."""
        read = super().run(seconds, is_over)
        for error in self.errors.values():
            raise error
        return read

    def next_work(self, excluded: Set[str]) -> tuple[str, Work] | None:
        for _ in self._readers:
            topic = self._turns[0]
            self._turns.rotate(-1)  # so that a busy topic does not hold up the others
            if topic not in excluded:
                return topic, self._readers[topic].read_next
        return None

    def log_failure(self, subject: str, **reason: Any) -> None:
        log.warning("kafka.topic.failed", topic=subject, **reason)
