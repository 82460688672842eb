"""Tasks claimed and completed per second against PgQueuer and procrastinate, and whether a long
history slows a claim down.

What is measured is what a Dag run does: it knows its task, leases it (`claim_one`), starts it, and
writes its success. These are three durable statements, each with a row of history. The peers take
their next job and finish it, one by one too: two statements, of which PgQueuer moves the job to a
log and procrastinate keeps it with its events. So a peer that is faster is no surprise, and the aim
is to be of the same order. All run on one private PostgreSQL with its durable defaults, each
library in its own database, with as many connections. Rounds are interleaved; what counts are
medians.
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

from moraine.ledger.pools import open_pool
from moraine.local.stack import Stack
from moraine.migrations import upgrade
from moraine.tasks.model import Claim, NewTask, Status, Task
from moraine.tasks.store import TaskStore
from report import Report

WORKERS = 2
TASKS = 500
ROUNDS = 11

HISTORY = 1_000_000
CLAIMS = 200

PAYLOAD = {"catalog": "demo", "namespace": "shop", "table": "orders"}
PAYLOAD_BYTES = b'{"catalog": "demo", "namespace": "shop", "table": "orders"}'

console = Console()


def main() -> None:
    logging.disable(logging.WARNING)
    report = Report("ledger", "Claimed and completed per second, one by one; time of a claim")
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

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

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
        assert done == TASKS, f"{self.name} finished {done} of {TASKS}"
        return done / seconds


class Moraine(Contender):
    """What a Dag run does with its task, by the task's id."""

    def open(self) -> None:
        upgrade(self.url)
        self._pool = open_pool(self.url, size=WORKERS)
        self._threads = ThreadPoolExecutor(WORKERS)
        self._store = TaskStore(self._pool)

    def fill(self) -> None:
        self._tasks = add_tasks(self._store, TASKS)

    def drain(self) -> int:
        return sum(self._threads.map(self._work, self._tasks))

    def _work(self, task_id: uuid.UUID) -> bool:
        task = self._store.claim_one(task_id, "bench")
        assert task is not None
        finish(self._store, task)
        return True

    def close(self) -> None:
        self._threads.shutdown()
        self._pool.close()


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
    """Jobs one by one, through the same queries that its worker uses."""

    async def open_async(self) -> None:
        size = WORKERS + 1  # its worker keeps one connection to listen
        self._pool = await asyncpg.create_pool(self.url, min_size=size, max_size=size)
        self._connections = [await asyncpg.connect(self.url) for _ in range(WORKERS)]
        await Queries.from_asyncpg_pool(self._pool).install()

    async def fill_async(self) -> None:
        queries = Queries.from_asyncpg_pool(self._pool)
        for size in chunks(TASKS):
            await queries.enqueue(["noop"] * size, [PAYLOAD_BYTES] * size, [0] * size)

    async def drain_async(self) -> int:
        work = (self._work(Queries.from_asyncpg_connection(each)) for each in self._connections)
        return sum(await asyncio.gather(*work))

    async def _work(self, queries: Queries) -> int:
        done = 0
        worker = uuid.uuid4()
        entrypoints = {"noop": EntrypointExecutionParameter(concurrency_limit=0)}
        stale = timedelta(hours=1)
        while jobs := await queries.dequeue(1, entrypoints, worker, None, stale):
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

        await manager.run(batch_size=1, mode=QueueExecutionMode.drain)
        return done


class Procrastinate(AsyncContender):
    """Jobs one by one, through its job manager."""

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
        for size in chunks(TASKS):
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


CONTENDERS: dict[str, type[Contender]] = {
    "moraine": Moraine,
    "pgqueuer": PgQueuer,
    "pgqueuer_worker": PgQueuerWorker,
    "procrastinate": Procrastinate,
    "procrastinate_worker": ProcrastinateWorker,
}


def compare_throughput(stack: Stack, report: Report) -> None:
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with ExitStack() as opened:
        contenders = [
            kind(name, create_database(stack, f"bench_{name}")) for name, kind in CONTENDERS.items()
        ]
        for each in contenders:
            each.open()
            opened.callback(each.close)
        for number in track(range(1 + ROUNDS), "claim and complete", console=console):
            for each in contenders:
                rate = each.rate()
                if number > 0:  # the first round warms up
                    rates[each.name].append(rate)

    for name, values in rates.items():
        report.figure(f"{name}_per_s", values)
    ours, *peers = (median(values) for values in rates.values())
    report.ratio("claim_start_complete_vs_best_peer", ours / max(peers), aim="0.5 or more")


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
            tasks = {name: add_tasks(store, 2 * CLAIMS) for name, store in stores.items()}
            for url in urls.values():
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("VACUUM ANALYZE tasks, task_history")
            for name, store in stores.items():
                times[name].append(median(claim_times(store, tasks[name])))
    for name, values in times.items():
        report.figure(f"claim_{name}_history_ms", values)
    ratio = median(times["1m"]) / median(times["empty"])
    report.ratio("claim_1m_history_vs_empty", ratio, aim="1.3 or less")


def claim_times(store: TaskStore, tasks: list[uuid.UUID]) -> list[float]:
    """Milliseconds of single claims, in the middle of a queue."""
    times = []
    for number, task_id in enumerate(tasks):
        began = time.perf_counter()
        task = store.claim_one(task_id, "bench")
        if number < CLAIMS:
            times.append(1000 * (time.perf_counter() - began))
        assert task is not None
        finish(store, task)
    return times


def finish(store: TaskStore, task: Task) -> None:
    claim = store.start(Claim(task.task_id, task.version, "bench"))
    store.advance(claim, Status.SUCCESS, "succeeded", summary="done")


def write_history(url: str) -> None:
    """Tasks that ended over the last weeks, each with the three versions of a first success."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")  # no notifications
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


def add_tasks(store: TaskStore, count: int) -> list[uuid.UUID]:
    ids = [uuid.UUID(int=uuid6.uuid7().int) for _ in range(count)]
    for task_id in ids:
        store.add(NewTask(task_id, "demo", "NOOP", PAYLOAD, "demo.shop.orders"))
    return ids


def chunks(count: int, size: int = 1000) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


if __name__ == "__main__":
    main()
