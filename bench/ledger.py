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
from collections.abc import Callable, Iterable
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
BATCHES = (10, 100)
"""10 is what PgQueuer's own worker takes by default."""
ROUNDS = 7
TASKS = 6_000
TASKS_ONE_BY_ONE = 1_000
"""For those who take jobs one by one."""

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
    """One way to take tasks from a queue and to finish them."""

    def __init__(self, name: str, url: str, batch: int, tasks: int = TASKS) -> None:
        self.name = name
        self.url = url
        self.batch = batch
        self.tasks = tasks

    @abstractmethod
    def fill(self) -> None: ...

    @abstractmethod
    def drain(self) -> float:
        """Claim and complete every task; the seconds it took."""

    def rate(self) -> float:
        self.fill()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        return self.tasks / self.drain()


class Moraine(Contender):
    """`step` is how a worker gets on: what it holds in, what it holds next out."""

    def __init__(
        self,
        name: str,
        url: str,
        batch: int,
        step: Callable[[TaskStore, list[Lease], int], list[Lease]],
    ) -> None:
        super().__init__(name, url, batch)
        self._step = step

    def fill(self) -> None:
        with open_pool(self.url) as pool:
            add_tasks(TaskStore(pool), self.tasks)

    def drain(self) -> float:
        with open_pool(self.url, size=WORKERS) as pool, ThreadPoolExecutor(WORKERS) as workers:
            store = TaskStore(pool)
            list(workers.map(lambda _: store.ping(), range(10 * WORKERS)))
            began = time.perf_counter()
            done = sum(workers.map(self._work, [store] * WORKERS))
            seconds = time.perf_counter() - began
        assert done == self.tasks
        return seconds

    def _work(self, store: TaskStore) -> int:
        done = 0
        leases: list[Lease] = []
        while leases := self._step(store, leases, self.batch):
            done += len(leases)
        return done


def exchange(store: TaskStore, leases: list[Lease], batch: int) -> list[Lease]:
    return store.exchange(leases, "done", "bench", limit=batch)


def complete_then_claim(store: TaskStore, leases: list[Lease], batch: int) -> list[Lease]:
    store.succeed_many(leases, "done")
    return store.claim("bench", limit=batch, status=Status.RUNNING)


class PgQueuer(Contender):
    """Batches through the same queries that its worker uses."""

    def fill(self) -> None:
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        connection = await asyncpg.connect(self.url)
        queries = Queries.from_asyncpg_connection(connection)
        if not await queries.schema_is_installed():
            await queries.install()
        for size in chunks(self.tasks):
            await queries.enqueue(["noop"] * size, [PAYLOAD_BYTES] * size, [0] * size)
        await connection.close()

    def drain(self) -> float:
        return asyncio.run(self._drain())

    async def _drain(self) -> float:
        connections = [await asyncpg.connect(self.url) for _ in range(WORKERS)]
        began = time.perf_counter()
        work = (self._work(Queries.from_asyncpg_connection(each)) for each in connections)
        done = sum(await asyncio.gather(*work))
        seconds = time.perf_counter() - began
        for connection in connections:
            await connection.close()
        assert done == self.tasks
        return seconds

    async def _work(self, queries: Queries) -> int:
        done = 0
        worker = uuid.uuid4()
        entrypoints = {"noop": EntrypointExecutionParameter(concurrency_limit=0)}
        stale = timedelta(hours=1)
        while jobs := await queries.dequeue(self.batch, entrypoints, worker, None, stale):
            await queries.log_jobs([(job, "successful", None) for job in jobs])
            done += len(jobs)
        return done


class PgQueuerWorker(PgQueuer):
    """Its own worker, with a job that does nothing."""

    async def _drain(self) -> float:
        done = 0
        async with asyncpg.create_pool(
            self.url, min_size=WORKERS + 1, max_size=WORKERS + 1
        ) as pool:
            manager = QueueManager(Queries.from_asyncpg_pool(pool))

            @manager.entrypoint("noop")
            async def noop(_job: object) -> None:
                nonlocal done
                done += 1

            began = time.perf_counter()
            await manager.run(batch_size=self.batch, mode=QueueExecutionMode.drain)
            seconds = time.perf_counter() - began
        assert done == self.tasks
        return seconds


class Procrastinate(Contender):
    """Jobs one by one: it has no batches."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, url, batch=1, tasks=TASKS_ONE_BY_ONE)
        self._installed = False

    def fill(self) -> None:
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        app = self._app()
        async with app.open_async():
            if not self._installed:
                await app.schema_manager.apply_schema_async()
                self._installed = True
            for size in chunks(self.tasks):
                await app.tasks["noop"].batch_defer_async(*[PAYLOAD] * size)

    def drain(self) -> float:
        return asyncio.run(self._drain())

    async def _drain(self) -> float:
        app = self._app()
        async with app.open_async():
            began = time.perf_counter()
            done = await self._work_off(app)
            seconds = time.perf_counter() - began
        assert done == self.tasks
        return seconds

    async def _work_off(self, app: procrastinate.App) -> int:
        worker = await app.job_manager.register_worker()
        return sum(await asyncio.gather(*(self._work(app, worker) for _ in range(WORKERS))))

    async def _work(self, app: procrastinate.App, worker: int) -> int:
        done = 0
        jobs = app.job_manager
        while job := await jobs.fetch_job(queues=None, worker_id=worker):
            await jobs.finish_job(job, status=JobStatus.SUCCEEDED, delete_job=False)
            done += 1
        return done

    def _app(self) -> procrastinate.App:
        connector = procrastinate.PsycopgConnector(
            conninfo=self.url, min_size=WORKERS, max_size=WORKERS + 1
        )
        app = procrastinate.App(connector=connector)

        @app.task(name="noop")
        async def noop(**_payload: str) -> None:
            self.ran += 1

        return app

    ran = 0


class ProcrastinateWorker(Procrastinate):
    """Its own worker, with a job that does nothing."""

    async def _work_off(self, app: procrastinate.App) -> int:
        self.ran = 0
        await app.run_worker_async(
            wait=False, concurrency=WORKERS, listen_notify=False, install_signal_handlers=False
        )
        return self.ran


def compare_throughput(stack: Stack, report: Report) -> None:
    ours: list[Contender] = []
    peers: list[Contender] = []
    for batch in BATCHES:
        for name, step in (("moraine", exchange), ("moraine_two_calls", complete_then_claim)):
            url = create_ledger(stack, f"{name}_{batch}")
            ours.append(Moraine(f"{name}_{batch}", url, batch, step))
        for name, kind in (("pgqueuer", PgQueuer), ("pgqueuer_worker", PgQueuerWorker)):
            url = create_database(stack, f"{name}_{batch}")
            peers.append(kind(f"{name}_{batch}", url, batch))
    for name, one_by_one in (
        ("procrastinate", Procrastinate),
        ("procrastinate_worker", ProcrastinateWorker),
    ):
        peers.append(one_by_one(name, create_database(stack, name)))

    rates: dict[str, list[float]] = {each.name: [] for each in (*ours, *peers)}
    for _ in track(range(ROUNDS), "claim and complete", console=console):
        for each in (*ours, *peers):
            rates[each.name].append(each.rate())
    for name, values in rates.items():
        report.figure(f"{name}_per_s", values)

    def best(contenders: Iterable[Contender], batch: int) -> list[float]:
        able = (rates[each.name] for each in contenders if each.batch in (1, batch))
        return max(able, key=median)

    def ratio(batch: int) -> float:
        """Round by round, because both had the same machine then."""
        rounds = zip(best(ours, batch), best(peers, batch), strict=True)
        return median(our / peer for our, peer in rounds)

    first, *others = BATCHES
    report.ratio("claim_complete_vs_best_peer", ratio(first), aim="2 or more")
    for batch in others:
        report.ratio(f"claim_complete_vs_best_peer_batch_{batch}", ratio(batch), aim="1 or more")


# --- History --------------------------------------------------------------------------------


def compare_histories(stack: Stack, report: Report) -> None:
    urls = {name: create_ledger(stack, f"history_{name}") for name in ("empty", "1m")}
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
    rounds = zip(times["1m"], times["empty"], strict=True)
    ratio = median(full / empty for full, empty in rounds)
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


def create_ledger(stack: Stack, name: str) -> str:
    url = create_database(stack, name)
    upgrade(url)
    return url


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
