"""Opens the ledger of tasks for a process: a step of a Dag run, a Spark app, the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from pydantic import SecretStr

from moraine.access.audit import AuditLog
from moraine.access.guard import Authorizer
from moraine.access.model import Action, Principal, QualifiedName
from moraine.access.policy import policy_of
from moraine.ledger.pools import open_pool
from moraine.operations import OPERATIONS
from moraine.orchestration.connections import catalog_settings, executor_ledger_url, ledger_url
from moraine.orchestration.dag_runs import AirflowSession, DagRuns, dag_runs
from moraine.settings import Settings, get_settings
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from moraine.threads import Threads

# Long enough for a restart of the database. A worker that waits may lose its lease meanwhile; the
# takeover raises the version, so its writes are refused.
_WORKER_PATIENCE = timedelta(minutes=2)


@contextmanager
def dag_worker(owner: str) -> Iterator[Worker]:
    """For a step of a Dag run: the ledger through the Airflow connection `moraine_ledger`."""
    settings = get_settings()
    ledger = settings.ledger.model_copy(update={"executor_url": SecretStr(executor_ledger_url())})
    settings = settings.model_copy(update={"ledger": ledger})
    with _open_store(ledger_url(), settings, _WORKER_PATIENCE) as store:
        yield Worker(store, settings, owner, catalog_settings)


@contextmanager
def dag_service() -> Iterator[TaskService]:
    """For Dags that start or clean up tasks."""
    settings = get_settings()
    with _open_store(ledger_url(), settings, _WORKER_PATIENCE) as store:
        yield TaskService(store, dag_runs(), OPERATIONS, settings)


def authorize(
    tasks: TaskService, principal: Principal, action: Action, table: QualifiedName, act: str
) -> None:
    """Ask the policy, and write its answer to the audit log of the service's ledger."""
    policy, audit = policy_of(tasks.settings.policy), AuditLog(tasks.store.pool)
    authorizer = Authorizer(policy, audit, Threads())
    asyncio.run(authorizer.authorize(principal, action, table, act))


@contextmanager
def open_service(settings: Settings) -> Iterator[TaskService]:
    """For the command line: everything from the settings."""
    with _open_store(settings.ledger.address, settings, timedelta(0)) as store:
        runs = DagRuns(AirflowSession(settings.airflow))
        yield TaskService(store, runs, OPERATIONS, settings)


@contextmanager
def submitted_worker(owner: str) -> Iterator[Worker]:
    """For a Spark app started by spark-submit: everything from settings and environment.

    Airflow may not be installed there, so its connections were exported to the environment.
    """
    settings = get_settings()
    url = settings.ledger.address
    with _open_store(url, settings, _WORKER_PATIENCE) as store:
        yield Worker(store, settings, owner)


@contextmanager
def _open_store(url: str, settings: Settings, patience: timedelta) -> Iterator[TaskStore]:
    lease = settings.delegation.task.lease.lost_timeout_duration
    with open_pool(url, size=2) as pool:
        yield TaskStore(pool, lease=lease, patience=patience)
