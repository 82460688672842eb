"""Ingest as Dag runs: what the tasks of its Dags do."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from moraine import runtime
from moraine.errors import MoraineError
from moraine.settings import get_settings

_LOOK_SECONDS = 5.0


def in_the_way() -> bool:
    """Whether this run keeps a scheduler from being started anew.

    One that has lost its database ends; but with the LocalExecutor it first waits for all its
    tasks. A task that goes on for an hour has to end for it.
    """
    global _looked_at
    if "LocalExecutor" not in conf.get("core", "executor", fallback=""):
        return False
    if time.monotonic() - _looked_at < _LOOK_SECONDS:
        return False
    _looked_at = time.monotonic()
    return not runtime.dag_runs().scheduler_is_alive()


_looked_at = 0.0


def take_files() -> dict[str, int]:
    """Take dropped files."""
    counts = runtime.watch_drops(is_over=in_the_way)
    if counts is None:
        raise AirflowSkipException("No prefix is configured.")
    return counts


def write(application: str) -> int:
    """Write what the doors take in."""
    return _run("write", runtime.write_ingested, application)


def read_topics(application: str) -> int:
    """Read Kafka topics."""
    return _run("kafka", runtime.read_topics, application)


def _run(name: str, work: Callable[..., int], application: str) -> int:
    """On the warm Connect server, or in an app submitted to a master. How much was done there."""
    if not get_settings().ingest.enabled:
        raise AirflowSkipException("ingest.enabled is off.")
    try:
        if runtime.spark_is_submitted():
            runtime.submit(application, [name])
            return 0
        return work(runtime.spark_session, is_over=in_the_way)
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
