"""Reads topics into tables, each message once.

A range of offsets is read by Spark, written as data files, and committed together with the offsets
that come next. The commit is made only on a table that still says that the range is the next one;
so of two readers one commits, and a reader that was killed leaves nothing behind that counts.
Messages that do not fit are committed to the table of dead letters first: offsets never move past a
message that is in neither table.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pyarrow as pa  # noqa: F401 - Spark's workers need what the executor module imports
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from moraine.errors import MoraineError
from moraine.failpoints import failpoint
from moraine.ingest.batches import delete_files, order_for
from moraine.ingest.kafka import executor
from moraine.ingest.kafka.broker import Broker, next_range
from moraine.ingest.kafka.executor import DEAD_LETTERS, KafkaOrder, Written
from moraine.ingest.kafka.offsets import Offsets, offsets_in, with_offsets
from moraine.ingest.ledger import KeeperLedger
from moraine.ingest.schemas import DEFAULT_COLUMNS
from moraine.ingest.tables import BATCH, IngestTables, batches_in
from moraine.log import get_logger
from moraine.settings import KafkaSettings, KafkaTopicSettings
from moraine.spark import telling_apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Span:
    """What is read at once."""

    starts: Offsets
    ends: Offsets

    @property
    def messages(self) -> int:
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


class TopicReader:
    def __init__(
        self,
        topic: str,
        settings: KafkaSettings,
        tables: IngestTables,
        broker: Broker,
        ledger: KeeperLedger,
        session: Callable[[], SparkSession],
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._own: KafkaTopicSettings = settings.topics[topic]
        self._tables = tables
        self._broker = broker
        self._ledger = ledger
        self._session = session
        self._database, _, self._table = self._own.table.rpartition(".")

    def read_next(self) -> int:
        """Read what is there, up to a limit; how many messages were committed."""
        table = self._open(self._table, create=self._own.auto_create)
        known = offsets_in(table, self._topic)
        bounds = self._broker.bounds(self._topic)
        starts, ends = next_range(
            known,
            bounds,
            from_end=self._own.start == "latest",
            most=self._settings.max_messages,
            skip_missing=self._settings.missing_messages == "skip",
        )
        span = Span(starts, ends)
        if not span.messages and known:
            self._note_lag(starts, bounds.end)
            return 0
        begun = time.monotonic()
        committed = self._read(table, known, span)
        if committed is None:
            return 0
        self._note_lag(ends, bounds.end)
        self._ledger.count_messages(
            "kafka", committed.rows, committed.letters, committed.bytes, time.monotonic() - begun
        )
        return span.messages

    def _read(self, table: Table, known: Mapping[int, int], span: Span) -> Written | None:
        """Write and commit a span. None: somebody else did, or did something else."""
        letters = self._open(f"{self._table}{self._settings.dead_letters}", create=True)
        before = offsets_in(letters, self._topic)
        batch = uuid4()
        order = KafkaOrder(self._topic, order_for(batch, table), order_for(batch, letters), before)
        written = self._run(order, span) if span.messages else Written()
        failpoint("kafka.written")
        if written.letter_files:
            # Without them the offsets must not move.
            done = self._commit(letters, batch, written.letter_files, before, span.ends)
            if not done:
                delete_files(table, [file.file_path for file in written.row_files])
                return None
            failpoint("kafka.letters_committed")
        if not self._commit(table, batch, written.row_files, known, span.ends):
            return None
        failpoint("kafka.committed")
        return written

    def _commit(
        self,
        table: Table,
        batch: UUID,
        files: list[DataFile],
        known: Mapping[int, int],
        ends: Offsets,
    ) -> bool:
        """Whether this commit, and no other, has moved the table's offsets from `known`."""
        uuid = table.metadata.table_uuid

        def may_commit(table: Table) -> bool:
            return table.metadata.table_uuid == uuid and offsets_in(table, self._topic) == known

        told = with_offsets(self._topic, {**known, **ends})
        done = self._tables.append(
            table,
            files,
            {**told, BATCH: str(batch)},
            may_commit,
            attempts=self._settings.commit_attempts,
            properties=told,
        )
        if done is not None:
            return True
        now = self._tables.load(".".join(table.name()[:-1]), table.name()[-1])
        if str(batch) in batches_in(now):
            return True  # an attempt whose outcome was unknown
        log.info("kafka.span.lost", topic=self._topic)
        delete_files(now, [file.file_path for file in files])
        return False

    def _run(self, order: KafkaOrder, span: Span) -> Written:
        def told(offsets: Mapping[int, int]) -> str:
            return json.dumps({self._topic: {str(p): at for p, at in offsets.items()}})

        options = {
            **{f"kafka.{name}": value for name, value in self._settings.plain_properties.items()},
            "kafka.bootstrap.servers": self._settings.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({self._topic: sorted(span.ends)}),
            "startingOffsets": told(span.starts),
            "endingOffsets": told(span.ends),
            "failOnDataLoss": str(self._settings.missing_messages == "fail").lower(),
        }
        function = partial(executor.work_in_spark, order)
        with telling_apart():
            messages = self._session().read.format("kafka").options(**options).load()
            results = (
                messages.select("partition", "offset", "value")
                .mapInArrow(function, executor.RESULT_DDL)
                .collect()
            )
        total = Written()
        for row in results:
            one: Written = pickle.loads(bytes(row.result))  # noqa: S301 - our own executors'
            total.rows += one.rows
            total.letters += one.letters
            total.bytes += one.bytes
            total.row_files += one.row_files
            total.letter_files += one.letter_files
        return total

    def _open(self, table: str, *, create: bool) -> Table:
        if not create:
            return self._tables.load(self._database, table)
        columns = DEFAULT_COLUMNS if table == self._table else DEAD_LETTERS
        return self._tables.load_or_create(self._database, table, columns)

    def _note_lag(self, reached: Offsets, ends: Offsets) -> None:
        for partition, end in ends.items():
            at = reached.get(partition, 0)
            self._ledger.note_lag(self._topic, partition, self._own.table, at, end)


class KafkaReader:
    """All topics, one after the other, for as long as it is let."""

    def __init__(self, settings: KafkaSettings, readers: Mapping[str, TopicReader]) -> None:
        self._settings = settings
        self._readers = readers
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self, seconds: float) -> int:
        """How many messages were read. A topic that fails does not stop the others; if all fail,
        the last error ends the run."""
        end = time.monotonic() + seconds
        total = 0
        while not self._stop.is_set() and time.monotonic() < end:
            read, failures = 0, []
            for topic, reader in self._readers.items():
                if self._stop.is_set():
                    break
                try:
                    read += reader.read_next()
                except MoraineError as error:
                    failures.append(error)
                    log.warning("kafka.topic.failed", topic=topic, error=error.code, why=str(error))
            if failures and len(failures) == len(self._readers):
                raise failures[-1]
            total += read
            if not read:
                self._stop.wait(self._settings.poll_interval.total_seconds())
        return total
