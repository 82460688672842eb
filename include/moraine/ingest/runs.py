"""Ingest as Dag runs: what the tasks of its Dags do."""

from __future__ import annotations

from collections.abc import Callable

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from moraine import runtime
from moraine.errors import MoraineError
from moraine.settings import get_settings


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
        return work(runtime.spark_session)
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
