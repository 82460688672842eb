"""Ingest as Dag runs: what the tasks of its Dags do."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from moraine import runtime
from moraine.errors import MoraineError
from moraine.settings import get_settings


def read_topics() -> int:
    try:
        return runtime.read_topics(runtime.spark_session)
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error


def write(application: str) -> int:
    """Write on the warm Connect server, or in an app submitted to a master."""
    if not get_settings().ingest.enabled:
        raise AirflowSkipException("ingest.enabled is off.")
    try:
        if runtime.spark_is_submitted():
            runtime.submit(application, ["ingest"])
            return 0
        return runtime.write_ingested(runtime.spark_session)
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
