"""Topics that are read into tables: in the test's own process, or in one that can be killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from subprocess import Popen
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from moraine.ingest.kafka.broker import Broker as BrokerClient
from moraine.ingest.kafka.service import KafkaReader, TopicReader
from moraine.ingest.store import HousekeepingStore, TableStore, WriterStore
from moraine.ingest.tables.service import IngestTables
from moraine.ledger.pools import open_pool
from support.ingest import CATALOG, DATABASE, IngestSite
from support.kafka import Broker
from support.processes import running

_numbers = itertools.count(1)
_SCRIPT = """\
from moraine import log
from moraine.ingest import processes
from moraine.spark.session import connect
from moraine.settings import get_settings
log.configure()
processes.read_topics(lambda: connect({spark!r}), get_settings().ledger.url.get_secret_value())
"""


@dataclass(frozen=True)
class Topic:
    """A topic, and the tables that it is read into."""

    site: IngestSite
    broker: Broker
    name: str
    table: str

    @property
    def letters_table(self) -> str:
        return f"{self.table}_dead_letters"

    def send(self, *values: bytes | None, partition: int | None = None) -> None:
        """Return when the broker has acknowledged every one of them."""
        failed: list[KafkaError] = []

        def note(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.broker.servers, "linger.ms": 5})
        for value in values:
            chosen: dict[str, Any] = {} if partition is None else {"partition": partition}
            producer.produce(self.name, value, on_delivery=note, **chosen)
        assert producer.flush(60) == 0
        assert not failed

    def consume(self) -> list[str]:
        """What a plain consumer finds in the topic's first partition."""
        consumer = Consumer({"bootstrap.servers": self.broker.servers, "group.id": "test"})
        try:
            first = TopicPartition(self.name, 0)
            _, end = consumer.get_watermark_offsets(first, timeout=10)
            consumer.assign([TopicPartition(self.name, 0, 0)])
            texts: list[str] = []
            while message := consumer.poll(5):
                texts.append(json.loads(message.value())["message"])
                if message.offset() == end - 1:
                    break
            return texts
        finally:
            consumer.close()

    def settings(self, **changes: str) -> dict[str, str]:
        topics = {self.name: {"table": f"{DATABASE}.{self.table}"}}
        return {
            "kafka__bootstrap_servers": self.broker.servers,
            "kafka__topics": json.dumps(topics),
            "kafka__poll_interval": "0.2s",
            **changes,
        }

    @contextlib.contextmanager
    def reader(self, **changes: str) -> Iterator[TopicReader]:
        """A reader in this process. Its leases are long, because no thread renews them."""
        changes = {"writer__lease": "120s", **changes}
        settings = self.site.settings(**self.settings(**changes))
        ingest, kafka = settings.ingest, settings.ingest.kafka
        with open_pool(self.site.ledger_url, size=2) as pool:
            yield TopicReader(
                self.name,
                ingest,
                IngestTables(CATALOG, settings.catalog(CATALOG), TableStore(pool)),
                BrokerClient(kafka.bootstrap_servers, kafka.plain_properties),
                WriterStore(pool, "test", lease=ingest.writer.lease, lifetime=ingest.lifetime),
                HousekeepingStore(pool),
                lambda: self.site.spark,
            )

    def read(self, **changes: str) -> int:
        """Read what is there; how many messages that were."""
        with self.reader(**changes) as reader:
            return sum(iter(reader.read_next, 0))

    @contextlib.contextmanager
    def running_reader(self, **changes: str) -> Iterator[KafkaReader]:
        """A reader in this process that does not stop by itself."""
        with self.reader(writer__lease="3s", **changes) as reader:
            running = KafkaReader(
                {self.name: reader},
                reader.store,
                poll_interval=timedelta(seconds=0.2),
                lease=timedelta(seconds=3),
            )
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(running.run, 3600)
                try:
                    yield running
                finally:
                    running.stop()
                done.result(60)

    @contextlib.contextmanager
    def reader_process(self, **changes: str) -> Iterator[Popen[bytes]]:
        """A reader that can be killed. It is not restarted then."""
        script = _SCRIPT.format(spark=self.site.stack.spark.client_url)
        log = self.site.folder / f"reader-{os.getpid()}-{next(_numbers)}.log"
        environment = self.site.environment(**self.settings(**changes))
        argv = [sys.executable, "-c", script]
        with running(argv, self.site.folder, environment, log) as process:
            yield process

    def rows(self, columns: str = "message") -> list[Any]:
        """What Spark reads."""
        found = self.site.select(f"SELECT {columns} FROM {{db}}.{self.table}")
        return [next(iter(row.values())) if len(row) == 1 else row for row in found]

    def letters(self) -> list[dict[str, Any]]:
        found = self.site.select(
            f"SELECT topic, partition, offset, error, value FROM {{db}}.{self.letters_table} "
            "ORDER BY partition, offset"
        )
        return [
            {**row, "value": None if row["value"] is None else bytes(row["value"])} for row in found
        ]

    def lags(self) -> dict[int, int]:
        rows = self.site.rows(
            "SELECT partition, end_offset - next_offset AS lag FROM ingest_lags "
            "WHERE topic = %s AND table_name = %s",
            self.name,
            f"{DATABASE}.{self.table}",
        )
        return {row["partition"]: row["lag"] for row in rows}

    def lost_files(self) -> set[Any]:
        """Data files that their table does not have."""
        left: set[Any] = set()
        for table in (self.table, self.letters_table):
            files = self.site.data_files(table)
            left |= files - self.site.committed_files(table) if files else set()
        return left

    def open_batches(self) -> list[Any]:
        return self.site.rows(
            "SELECT batch FROM ingest_batches WHERE table_name = ANY(%s)",
            [self.table, self.letters_table],
        )


MakeTopic = Callable[..., Topic]


def messages(texts: Sequence[str]) -> list[bytes]:
    return [json.dumps({"message": text}).encode() for text in texts]
