"""Claims and completions per second against PgQueuer and procrastinate, and whether a long history
slows a claim down.

All on one private PostgreSQL with its durable defaults, each library in its own database, each in
the fastest way its public interface has, with as many connections and the same batch size where
it knows batches. Rounds are interleaved; what counts are medians.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median

import asyncpg
import procrastinate
import psycopg
import uuid6
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from procrastinate.jobs import Status as JobStatus
from rich.console import Console
from rich.progress import track

from moraine.local.stack import Stack
from moraine.migrations import upgrade
from moraine.tasks.model import Lease, NewTask, Status
from moraine.tasks.store import TaskStore, open_pool
from report import Report

WORKERS = 2
BATCHES = {10: 3_000, 100: 8_000}
"""Batch sizes, and how many tasks a round has. PgQueuer's own worker takes 10 by default."""
RATIOS = {
    "claim_complete_vs_best_peer": "2 or more",
    "claim_complete_vs_best_peer_batch_100": "more than 1",
}
TASKS_ONE_BY_ONE = 500
ROUNDS = 11

HISTORY = 1_000_000
CLAIMS = 200

PAYLOAD = {"catalog": "demo", "namespace": "shop", "table": "orders"}
PAYLOAD_BYTES = b'{"catalog": "demo", "namespace": "shop", "table": "orders"}'

console = Console()


def main() -> None:
    logging.disable(logging.WARNING)
    report = Report("ledger", "Claimed and completed per second by batch size; time of a claim")
    with (
        tempfile.TemporaryDirectory(prefix="moraine-bench-") as home,
        Stack.ephemeral(Path(home)) as stack,
    ):
        stack.up({"postgres"})
        compare_throughput(stack, report)
        compare_histories(stack, report)
    report.finish()


# --- Throughput -----------------------------------------------------------------------------


class Contender(ABC):
    """One way to take tasks from a queue and to finish them. Its connections stay open."""

    def __init__(self, name: str, url: str, *, batch: int, tasks: int) -> None:
        self.name = name
        self.url = url
        self.batch = batch
        self.tasks = tasks

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def fill(self) -> None: ...

    @abstractmethod
    def drain(self) -> int:
        """Claim and complete every task; how many there were."""

    @abstractmethod
    def close(self) -> None: ...

    def rate(self) -> float:
        self.fill()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        began = time.perf_counter()
        done = self.drain()
        seconds = time.perf_counter() - began
        assert done == self.tasks, f"{self.name} finished {done} of {self.tasks}"
        return done / seconds


class Moraine(Contender):
    """Finishes a batch and claims the next one in one call."""

    def open(self) -> None:
        upgrade(self.url)
        self._pool = open_pool(self.url, size=WORKERS)
        self._threads = ThreadPoolExecutor(WORKERS)
        self._store = TaskStore(self._pool)

    def fill(self) -> None:
        add_tasks(self._store, self.tasks)

    def drain(self) -> int:
        return sum(self._threads.map(self._work, range(WORKERS)))

    def _work(self, _number: int) -> int:
        done = 0
        leases: list[Lease] = []
        while leases := self._step(leases):
            done += len(leases)
        return done

    def _step(self, leases: list[Lease]) -> list[Lease]:
        return self._store.exchange(leases, "done", "bench", limit=self.batch)

    def close(self) -> None:
        self._threads.shutdown()
        self._pool.close()


class MoraineTwoCalls(Moraine):
    """Finishes a batch, then claims the next one."""

    def _step(self, leases: list[Lease]) -> list[Lease]:
        self._store.succeed_many(leases, "done")
        return self._store.claim("bench", limit=self.batch, status=Status.RUNNING)


class AsyncContender(Contender):
    """The peers live in an event loop."""

    def open(self) -> None:
        self._loop = asyncio.Runner()
        self._loop.run(self.open_async())

    def fill(self) -> None:
        self._loop.run(self.fill_async())

    def drain(self) -> int:
        return self._loop.run(self.drain_async())

    def close(self) -> None:
        self._loop.run(self.close_async())
        self._loop.close()

    @abstractmethod
    async def open_async(self) -> None: ...

    @abstractmethod
    async def fill_async(self) -> None: ...

    @abstractmethod
    async def drain_async(self) -> int: ...

    @abstractmethod
    async def close_async(self) -> None: ...


class PgQueuer(AsyncContender):
    """Batches through the same queries that its worker uses."""

    async def open_async(self) -> None:
        size = WORKERS + 1  # its worker keeps one connection to listen
        self._pool = await asyncpg.create_pool(self.url, min_size=size, max_size=size)
        self._connections = [await asyncpg.connect(self.url) for _ in range(WORKERS)]
        await Queries.from_asyncpg_pool(self._pool).install()

    async def fill_async(self) -> None:
        queries = Queries.from_asyncpg_pool(self._pool)
        for size in chunks(self.tasks):
            await queries.enqueue(["noop"] * size, [PAYLOAD_BYTES] * size, [0] * size)

    async def drain_async(self) -> int:
        work = (self._work(Queries.from_asyncpg_connection(each)) for each in self._connections)
        return sum(await asyncio.gather(*work))

    async def _work(self, queries: Queries) -> int:
        done = 0
        worker = uuid.uuid4()
        entrypoints = {"noop": EntrypointExecutionParameter(concurrency_limit=0)}
        stale = timedelta(hours=1)
        while jobs := await queries.dequeue(self.batch, entrypoints, worker, None, stale):
            await queries.log_jobs([(job, "successful", None) for job in jobs])
            done += len(jobs)
        return done

    async def close_async(self) -> None:
        await self._pool.close()
        for connection in self._connections:
            await connection.close()


class PgQueuerWorker(PgQueuer):
    """Its own worker, with a job that does nothing."""

    async def drain_async(self) -> int:
        done = 0
        manager = QueueManager(Queries.from_asyncpg_pool(self._pool))

        @manager.entrypoint("noop")
        async def noop(_job: object) -> None:
            nonlocal done
            done += 1

        await manager.run(batch_size=self.batch, mode=QueueExecutionMode.drain)
        return done


class Procrastinate(AsyncContender):
    """Jobs one by one: it has no batches."""

    async def open_async(self) -> None:
        connector = procrastinate.PsycopgConnector(
            conninfo=self.url, min_size=WORKERS, max_size=WORKERS + 1
        )
        self._app = procrastinate.App(connector=connector)
        self._ran = 0

        @self._app.task(name="noop")
        async def noop(**_payload: str) -> None:
            self._ran += 1

        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def fill_async(self) -> None:
        for size in chunks(self.tasks):
            await self._app.tasks["noop"].batch_defer_async(*[PAYLOAD] * size)

    async def drain_async(self) -> int:
        worker = await self._app.job_manager.register_worker()
        return sum(await asyncio.gather(*(self._work(worker) for _ in range(WORKERS))))

    async def _work(self, worker: int) -> int:
        done = 0
        jobs = self._app.job_manager
        while job := await jobs.fetch_job(queues=None, worker_id=worker):
            await jobs.finish_job(job, status=JobStatus.SUCCEEDED, delete_job=False)
            done += 1
        return done

    async def close_async(self) -> None:
        await self._app.close_async()


class ProcrastinateWorker(Procrastinate):
    """Its own worker, with a job that does nothing."""

    async def drain_async(self) -> int:
        before = self._ran
        await self._app.run_worker_async(
            wait=False, concurrency=WORKERS, listen_notify=False, install_signal_handlers=False
        )
        return self._ran - before


def compare_throughput(stack: Stack, report: Report) -> None:
    contenders: list[Contender] = []
    with ExitStack() as opened:

        def enter(kind: type[Contender], name: str, batch: int, tasks: int) -> None:
            contender = kind(name, create_database(stack, name), batch=batch, tasks=tasks)
            contender.open()
            opened.callback(contender.close)
            contenders.append(contender)

        # Whom the ratios compare stand side by side, so that a round gives them the same machine.
        for batch, tasks in BATCHES.items():
            enter(Moraine, f"moraine_{batch}", batch, tasks)
            enter(PgQueuer, f"pgqueuer_{batch}", batch, tasks)
            enter(MoraineTwoCalls, f"moraine_two_calls_{batch}", batch, tasks)
            enter(PgQueuerWorker, f"pgqueuer_worker_{batch}", batch, tasks)
        enter(Procrastinate, "procrastinate", 1, TASKS_ONE_BY_ONE)
        enter(ProcrastinateWorker, "procrastinate_worker", 1, TASKS_ONE_BY_ONE)

        rates: dict[str, list[float]] = {each.name: [] for each in contenders}
        for number in track(range(1 + ROUNDS), "claim and complete", console=console):
            for each in contenders:
                rate = each.rate()
                if number > 0:  # the first round warms up
                    rates[each.name].append(rate)

    for name, values in rates.items():
        report.figure(f"{name}_per_s", values)
    ours = [each for each in contenders if isinstance(each, Moraine)]
    peers = [each for each in contenders if not isinstance(each, Moraine)]

    def best(some: list[Contender], batch: int) -> float:
        return max(median(rates[each.name]) for each in some if each.batch in (1, batch))

    for batch, (name, aim) in zip(BATCHES, RATIOS.items(), strict=True):
        report.ratio(name, best(ours, batch) / best(peers, batch), aim=aim)


# --- History --------------------------------------------------------------------------------


def compare_histories(stack: Stack, report: Report) -> None:
    urls = {name: create_database(stack, f"history_{name}") for name in ("empty", "1m")}
    for url in urls.values():
        upgrade(url)
    with console.status(f"writing {HISTORY:,} finished tasks"):
        write_history(urls["1m"])
    with ExitStack() as pools:
        stores = {
            name: TaskStore(pools.enter_context(open_pool(url, size=1)))
            for name, url in urls.items()
        }
        times: dict[str, list[float]] = {name: [] for name in stores}
        for _ in track(range(ROUNDS), "claims with and without a history", console=console):
            for store in stores.values():
                add_tasks(store, 2 * CLAIMS)
            for url in urls.values():
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("VACUUM ANALYZE tasks, task_history")
            for name, store in stores.items():
                times[name].append(median(claim_times(store)))
    for name, values in times.items():
        report.figure(f"claim_{name}_history_ms", values)
    ratio = median(times["1m"]) / median(times["empty"])
    report.ratio("claim_1m_history_vs_empty", ratio, aim="1.3 or less")


def claim_times(store: TaskStore) -> list[float]:
    """Milliseconds of single claims, in the middle of a queue."""
    times = []
    for _ in range(CLAIMS):
        began = time.perf_counter()
        leases = store.claim("bench", limit=1, status=Status.RUNNING)
        times.append(1000 * (time.perf_counter() - began))
        store.succeed_many(leases, "done")
    while leases := store.exchange(leases, "done", "bench", limit=100):
        pass
    return times


def write_history(url: str) -> None:
    """Tasks that ended over the last weeks, each with the three versions of a first success."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # nobody listens
        connection.execute(
            """
            INSERT INTO tasks (task_id, version, realm_id, task_type, task_payload, subject, status,
                               reason, received_timestamp, created_ts, last_status_change_ts,
                               attempt_count, lease_owner, lease_acquired_ts, result_summary)
            SELECT (lpad(to_hex((1000 * extract(epoch FROM now() + back))::bigint), 12, '0')
                    || '7' || left(md5(number::text), 3) || '8' || right(md5(number::text), 15)
                   )::uuid, 3, 'demo', 'NOOP', %(payload)s, 'demo.shop.t' || number, 'SUCCESS',
                   'succeeded', now() + back, now() + back, now() + back, 1, 'bench', now() + back,
                   'done'
            FROM generate_series(1, %(count)s) AS number,
                 LATERAL (SELECT make_interval(secs => number - 2 * %(count)s)) AS ago (back)
            """,
            {"payload": psycopg.types.json.Jsonb(PAYLOAD), "count": HISTORY},
        )
        connection.execute(
            """
            INSERT INTO task_history (task_id, version, status, last_status_change_ts,
                                      attempt_count, reason, lease_owner, result_summary)
            SELECT task_id, step.version, step.status, last_status_change_ts, attempt_count,
                   step.reason, lease_owner, result_summary
            FROM tasks, (VALUES (1, 'SUBMITTED', 'submitted'), (2, 'RUNNING', 'claimed'),
                                (3, 'SUCCESS', 'succeeded')) AS step (version, status, reason)
            """
        )
        connection.execute("VACUUM ANALYZE")


# --- The databases --------------------------------------------------------------------------


def create_database(stack: Stack, name: str) -> str:
    server, _, _ = stack.postgres.admin_url.rpartition("/")
    with psycopg.connect(stack.postgres.admin_url, autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
        )
    return f"{server}/{name}"


def add_tasks(store: TaskStore, count: int) -> None:
    for size in chunks(count):
        store.add_many(
            [
                NewTask(
                    uuid.UUID(int=uuid6.uuid7().int), "demo", "NOOP", PAYLOAD, "demo.shop.orders"
                )
                for _ in range(size)
            ]
        )


def chunks(count: int, size: int = 1000) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


if __name__ == "__main__":
    main()
