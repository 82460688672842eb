"""Puts the pieces together from where they are configured: Airflow's connections, or settings."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import SecretStr

from moraine.catalog.connections import storage_properties_of, with_connections
from moraine.dag_runs import AirflowSession, DagRuns
from moraine.idempotency.store import RecordStore, open_async_pool
from moraine.operations import OPERATIONS
from moraine.operations.purge.tombstones import TombstoneStore
from moraine.settings import AirflowSettings, CatalogSettings, Settings, get_settings
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore, open_pool
from moraine.tasks.worker import Worker

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from pyspark.sql import SparkSession

T = TypeVar("T")

LEDGER = "moraine_ledger"
SPARK = "moraine_spark"
AIRFLOW = "moraine_airflow"
CATALOG = "moraine_catalog_"
STORAGE = "moraine_storage_"
FILEDROP = "moraine_filedrop_"

# Airflow has no connections with other names.
_CONNECTION_NAME = re.compile(r"[A-Za-z0-9_.-]+")

# A worker waits out a restart of the database; whoever takes over later raises the version.
_WORKER_PATIENCE = timedelta(minutes=2)


@contextmanager
def dag_worker(owner: str) -> Iterator[Worker]:
    """For a step of a Dag run: the ledger through the Airflow connection `moraine_ledger`."""
    settings = get_settings()
    with _store(_ledger_url(), settings, _WORKER_PATIENCE) as store:
        yield Worker(store, settings, owner, catalog_settings)


@contextmanager
def dag_service() -> Iterator[TaskService]:
    """For Dags that care for tasks: the same, with Airflow's own API to start runs."""
    settings = get_settings()
    with _store(_ledger_url(), settings, _WORKER_PATIENCE) as store:
        yield TaskService(store, dag_runs(), OPERATIONS, settings)


@contextmanager
def open_service(settings: Settings) -> Iterator[TaskService]:
    """For the command line: everything from the settings."""
    with _store(settings.ledger.url.get_secret_value(), settings, timedelta(0)) as store:
        dag_runs = DagRuns(AirflowSession(settings.airflow))
        yield TaskService(store, dag_runs, OPERATIONS, settings)


@contextmanager
def submitted_worker(owner: str) -> Iterator[Worker]:
    """For a Spark app started by spark-submit: everything from settings and environment.

    There may be no Airflow where it runs; what its connections say was handed over.
    """
    settings = get_settings()
    with _store(settings.ledger.url.get_secret_value(), settings, _WORKER_PATIENCE) as store:
        yield Worker(store, settings, owner)


def reconcile_keys() -> dict[str, int]:
    """For Dags: settle idempotency keys that nobody has come back for."""
    from moraine.gateway.reconcile import Reconciler

    settings = get_settings()

    async def run(records: RecordStore) -> dict[str, int]:
        with _store(_ledger_url(), settings, _WORKER_PATIENCE) as tasks:
            tombstones = TombstoneStore(tasks.pool, settings.realm)
            reconciler = Reconciler(records, tasks, tombstones, catalog_settings, settings.realm)
            return {settled.value: count for settled, count in (await reconciler.run()).items()}

    return _with_records(_ledger_url(), settings, run)


def forget_expired_keys(url: str | None = None) -> int:
    """Remove idempotency keys that are over, batch by batch."""
    settings = get_settings()
    cleanup = settings.idempotency.cleanup
    if not cleanup.enabled:
        return 0

    async def run(records: RecordStore) -> int:
        removed = 0
        while batch := await records.remove_expired(cleanup.batch):
            removed += batch
        return removed

    return _with_records(url or _ledger_url(), settings, run)


def write_ingested(
    session: Callable[[], SparkSession],
    ledger_url: str | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Write what the doors take in, for as long as a run may last, or until it is over. How many
    requests that were."""
    from moraine.ingest.batches import BatchWriter
    from moraine.ingest.ledger import WriterLedger
    from moraine.ingest.tables import IngestTables
    from moraine.ingest.writer import Writer

    settings = get_settings()
    ingest, url = settings.ingest, ledger_url or _ledger_url()
    name = settings.ingest_catalog
    catalog = settings.catalog(name) if ledger_url else catalog_settings(name)
    pool: Any = open_pool(url, size=ingest.writer.tables_at_once + 3)
    owner = f"{socket.gethostname()}-{os.getpid()}"
    with pool:
        ledger = WriterLedger(pool, owner, lease=ingest.writer.lease, lifetime=ingest.lifetime)
        batches = BatchWriter(ingest, ledger, IngestTables(name, catalog), functools.cache(session))
        writer = Writer(ingest.writer, ledger, batches, url)
        with _stopped_by_signals(writer.stop):
            return writer.run(ingest.writer.run_duration.total_seconds(), is_over)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """What is under way is brought to its end before the process goes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_topics(
    session: Callable[[], SparkSession],
    ledger_url: str | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Read the configured Kafka topics into their tables, for as long as a run may last, or until
    it is over. How many messages that were."""
    from moraine.ingest.kafka.broker import Broker
    from moraine.ingest.kafka.reader import TopicReader
    from moraine.ingest.kafka.service import KafkaReader
    from moraine.ingest.ledger import KeeperLedger, WriterLedger
    from moraine.ingest.tables import IngestTables

    settings = get_settings()
    ingest, kafka = settings.ingest, settings.ingest.kafka
    name = settings.ingest_catalog
    tables = IngestTables(name, settings.catalog(name) if ledger_url else catalog_settings(name))
    broker = Broker(kafka.bootstrap_servers, kafka.plain_properties)
    lease = ingest.writer.lease
    owner = f"{socket.gethostname()}-{os.getpid()}"
    pool: Any = open_pool(ledger_url or _ledger_url(), size=2)
    with pool:
        ledger = WriterLedger(pool, owner, lease=lease, lifetime=ingest.lifetime)
        parts = (tables, broker, ledger, KeeperLedger(pool), functools.cache(session))
        readers = {topic: TopicReader(topic, ingest, *parts) for topic in kafka.topics}
        reader = KafkaReader(readers, ledger, poll_interval=kafka.poll_interval, lease=lease)
        with _stopped_by_signals(reader.stop):
            return reader.run(kafka.run_duration.total_seconds(), is_over)


def forget_ingested_keys(url: str | None = None) -> int:
    """Remove ingest keys that are over, batch by batch, and what is left of their bytes."""
    from moraine.ingest.ledger import KeeperLedger
    from moraine.ingest.staging import remove_left_over

    settings = get_settings()
    ingest = settings.ingest
    removed = 0
    pool: Any = open_pool(url or _ledger_url(), size=1)
    with pool:
        keeper = KeeperLedger(pool)
        while batch := keeper.remove_expired(ingest.lifetime, ingest.grace, ingest.cleanup_batch):
            removed += len(batch)
        needed = keeper.waiting_files()
    remove_left_over(settings.workspace, needed, ingest.lifetime + ingest.grace)
    return removed


def watch_drops(is_over: Callable[[], bool] = lambda: False) -> dict[str, int] | None:
    """For Dags: take dropped files, for as long as a run may last. How many went which way; None if
    no prefix is watched."""
    settings = get_settings()
    if not settings.ingest.enabled or not settings.ingest.filedrop.prefixes:
        return None
    from moraine.ingest.filedrop.looks import Counts
    from moraine.ingest.filedrop.running import watch

    filedrop = settings.ingest.filedrop
    end = time.monotonic() + filedrop.watch_duration.total_seconds()
    total, stopped = Counts(), threading.Event()
    with _stopped_by_signals(stopped.set):
        while True:
            total = total.then(asyncio.run(watch(_ledger_url(), settings, _prefix_storage)))
            left = end - time.monotonic()
            pause = min(left, filedrop.poll_interval.total_seconds())
            if left <= 0 or is_over() or stopped.wait(pause):
                return asdict(total)


def _prefix_storage(name: str) -> dict[str, str]:
    """What opens a watched prefix, with what its Airflow connection says."""
    properties = get_settings().ingest.filedrop.prefixes[name].storage_properties
    found = _connection(f"{FILEDROP}{name}") if _CONNECTION_NAME.fullmatch(name) else None
    return {**properties, **(storage_properties_of(found) if found else {})}


def _with_records(
    url: str, settings: Settings, work: Callable[[RecordStore], Coroutine[Any, Any, T]]
) -> T:
    """Run something on the records of keyed requests, in an event loop of its own."""

    async def run() -> T:
        async with open_async_pool(url, size=2) as pool:
            return await work(RecordStore.of(pool, settings.idempotency))

    return asyncio.run(run())


def dag_runs() -> DagRuns:
    """Airflow's API as the connection `moraine_airflow` has it, or else as the settings do."""
    settings = get_settings().airflow
    if connection := _connection(AIRFLOW):
        settings = AirflowSettings(
            url=f"{connection.schema or 'http'}://{connection.host}:{connection.port}",
            username=connection.login or "",
            password=SecretStr(connection.password or ""),
            timeout=settings.timeout,
        )
    return DagRuns(AirflowSession(settings))


def spark_session() -> SparkSession:
    """A session of the Connect server behind the connection `moraine_spark`.

    If the connection's extra names a `session_id`, every process shares that one session, and
    with it the server's warm Python workers.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    from moraine.spark import connect

    url = SparkConnectHook(SPARK).get_connection_url()
    connection = _connection(SPARK)
    return connect(url, shared=connection.extra_dejson.get("session_id") if connection else None)


def spark_is_submitted() -> bool:
    """Whether `moraine_spark` is a master URL to submit to, not a Connect server."""
    connection = _connection(SPARK)
    return connection is not None and connection.conn_type == "spark"


def catalog_settings(name: str) -> CatalogSettings:
    """For Dags: a catalog with what its Airflow connections say.

    These are `moraine_catalog_NAME` for the principal and `moraine_storage_NAME` for the files
    of a catalog that vends no credentials.
    """
    settings = get_settings().catalog(name)
    if not _CONNECTION_NAME.fullmatch(name):
        return settings
    return with_connections(
        settings, _connection(f"{CATALOG}{name}"), _connection(f"{STORAGE}{name}")
    )


def submit(application: str, arguments: list[str]) -> None:
    """Run a Spark app to its end on the master behind `moraine_spark`.

    The app's driver runs here and inherits the ledger's address and the catalogs' secrets; as
    Spark settings they would show in process lists.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    hook = SparkSubmitHook(
        conn_id=SPARK,
        name=f"moraine {arguments[0]}",
        application_args=arguments,
    )
    os.environ["MORAINE_LEDGER__URL"] = _ledger_url()
    _hand_over_catalogs()
    hook.submit(application)


def _hand_over_catalogs() -> None:
    """Put every catalog, with its secrets, in the environment of processes started from here."""
    catalogs = {name: catalog_settings(name).revealed() for name in get_settings().catalogs}
    for name in [name for name in os.environ if name.startswith("MORAINE_CATALOGS__")]:
        del os.environ[name]  # they would come before a connection's
    os.environ["MORAINE_CATALOGS"] = json.dumps(catalogs)


def _ledger_url() -> str:
    connection = _connection(LEDGER)
    if connection is None:
        return get_settings().ledger.url.get_secret_value()
    return str(connection.get_uri()).replace("postgres://", "postgresql://", 1)


@functools.cache
def _connection(name: str) -> Connection | None:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found: Connection = Connection.get(name)
        return found
    except AirflowNotFoundException:
        return None


@contextmanager
def _store(url: str, settings: Settings, patience: timedelta) -> Iterator[TaskStore]:
    lease = settings.delegation.task.lease.lost_timeout_duration
    pool: Any = open_pool(url, size=2)
    with pool:
        yield TaskStore(pool, lease=lease, patience=patience)
