"""The processes of ingest, assembled: writer, Kafka reader, file watcher, clean-up."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from psycopg_pool import ConnectionPool

from moraine.access.model import Action, QualifiedName
from moraine.access.policy import policy_of
from moraine.ingest.filedrop.model import FileCounts, drops_of
from moraine.ingest.filedrop.service import MayWrite, PrefixWatcher, Watcher
from moraine.ingest.filedrop.store import FileStore
from moraine.ingest.kafka.broker import Broker
from moraine.ingest.kafka.service import KafkaReader, TopicReader
from moraine.ingest.model import door_principal
from moraine.ingest.service import IngestService, SettledFeed
from moraine.ingest.staging import remove_stale_files
from moraine.ingest.store import DoorStore, HousekeepingStore, TableStore, WriterStore
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.writing.loop import LeasedLoop
from moraine.ingest.writing.service import BatchWriter
from moraine.ingest.writing.writer import Writer
from moraine.ledger.pools import open_async_pool, open_pool
from moraine.log import get_logger
from moraine.orchestration.connections import catalog_settings, filedrop_storage, ledger_url
from moraine.orchestration.long_runs import stopped_by_signals
from moraine.settings import Settings, get_settings
from moraine.settings.ingest import IngestSettings
from moraine.spark.session import SessionFactory
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage

log = get_logger(__name__)

# One holds the lock, and one is for statements that are not about a single file.
_MORE_CONNECTIONS = 2


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the writer and the Kafka reader have in common."""

    settings: IngestSettings
    url: str
    pool: ConnectionPool[Any]
    store: WriterStore
    tables: IngestTables


@contextmanager
def _parts(url: str | None, connections: int) -> Iterator[_Parts]:
    """Without a URL, Airflow's connections say where the ledger and the catalog are."""
    settings = get_settings()
    ingest, name = settings.ingest, settings.ingest_catalog
    catalog = settings.catalog(name) if url else catalog_settings(name)
    url = url or ledger_url()
    owner = f"{socket.gethostname()}-{os.getpid()}"
    with open_pool(url, size=connections) as pool:
        store = WriterStore(pool, owner, lease=ingest.writer.lease, lifetime=ingest.lifetime)
        yield _Parts(ingest, url, pool, store, IngestTables(name, catalog, TableStore(pool)))


def _may_write(settings: Settings) -> MayWrite:
    """Asks the policy about tables that ingest writes to."""
    policy, catalog = policy_of(settings.policy), settings.ingest_catalog

    async def may_write(door: str, database: str, table: str) -> bool:
        principal = door_principal(settings.realm, door)
        name = QualifiedName(catalog, tuple(database.split(".")), table)
        return await policy.allows(principal, Action.WRITE_INGEST, name)

    return may_write


def _allowed_topics(settings: Settings) -> list[str]:
    may_write = _may_write(settings)
    allowed: list[str] = []
    for topic, target in settings.ingest.kafka.topics.items():
        database, _, table = target.table.rpartition(".")
        if asyncio.run(may_write(f"kafka:{topic}", database, table)):
            allowed.append(topic)
        else:
            log.error("kafka.topic.refused", topic=topic, table=target.table)
    return allowed


def _run(loop: LeasedLoop, seconds: float, is_over: Callable[[], bool]) -> int:
    with stopped_by_signals(loop.stop):
        return loop.run(seconds, is_over)


def write_ingested(
    session: SessionFactory,
    url: str | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Write waiting requests, for as long as a run may last or until it is over, and return how
    many."""
    writer = get_settings().ingest.writer
    with _parts(url, writer.tables_at_once + 3) as parts:
        batches = BatchWriter(parts.settings, parts.store, parts.tables, functools.cache(session))
        loop = Writer(writer, parts.store, batches, parts.url)
        return _run(loop, writer.run_duration.total_seconds(), is_over)


def read_topics(
    session: SessionFactory,
    url: str | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Read the configured Kafka topics into their tables, for as long as a run may last or until it
    is over, and return how many messages."""
    kafka = get_settings().ingest.kafka
    broker = Broker(kafka.bootstrap_servers, kafka.plain_properties)
    with _parts(url, 2) as parts:
        housekeeping, session = HousekeepingStore(parts.pool), functools.cache(session)
        shared = (parts.settings, parts.tables, broker, parts.store, housekeeping, session)
        loop = KafkaReader(
            {topic: TopicReader(topic, *shared) for topic in _allowed_topics(get_settings())},
            parts.store,
            poll_interval=kafka.poll_interval,
            lease=parts.settings.writer.lease,
        )
        return _run(loop, kafka.run_duration.total_seconds(), is_over)


def forget_ingested_keys(url: str | None = None) -> int:
    """Remove expired keys, batch by batch, and stale files of the workspace."""
    settings = get_settings()
    ingest = settings.ingest
    removed = 0
    with open_pool(url or ledger_url(), size=1) as pool:
        store = HousekeepingStore(pool)
        while batch := store.remove_expired(ingest.lifetime, ingest.grace, ingest.cleanup_batch):
            removed += len(batch)
        needed = store.waiting_files()
    remove_stale_files(settings.workspace, needed, ingest.lifetime + ingest.grace)
    return removed


def watch_drops(is_over: Callable[[], bool] = lambda: False) -> dict[str, int] | None:
    """Take dropped files, for as long as a run may last, and return how many had which outcome;
    None if no prefix is watched."""
    settings = get_settings()
    filedrop = settings.ingest.filedrop
    if not settings.ingest.enabled or not filedrop.prefixes:
        return None
    end = time.monotonic() + filedrop.watch_duration.total_seconds()
    total, stopped = FileCounts(), threading.Event()
    with stopped_by_signals(stopped.set):
        while True:
            total = total.then(asyncio.run(watch_once(ledger_url(), settings, filedrop_storage)))
            left = end - time.monotonic()
            pause = min(left, filedrop.poll_interval.total_seconds())
            if left <= 0 or is_over() or stopped.wait(pause):
                return asdict(total)


async def watch_once(
    url: str, settings: Settings, properties_of: Callable[[str], Mapping[str, str]]
) -> FileCounts:
    """Take the files that are there. `properties_of` has what opens the store of a prefix."""
    filedrop = settings.ingest.filedrop
    drops = drops_of(filedrop)
    may_write = _may_write(settings)
    size = filedrop.files_at_once + _MORE_CONNECTIONS
    with ExitStack() as opened:
        async with open_async_pool(url, size=size) as pool:
            store, files = DoorStore(pool), FileStore(pool)
            # The watcher asks for the outcome of its keys itself: the feed does not run.
            feed = SettledFeed(url, store)
            service = IngestService(settings.ingest, store, feed, settings.workspace)
            prefixes = [
                PrefixWatcher(
                    drop,
                    opened.enter_context(Storage(Credentials(properties_of(drop.name)))),
                    files,
                    service,
                    filedrop,
                    may_write,
                )
                for drop in drops
            ]
            return await Watcher(prefixes, files, filedrop.run_duration).watch()
