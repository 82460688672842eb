"""The tasks of ingest's Dags."""

from __future__ import annotations

from collections.abc import Callable

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from moraine.errors import MoraineError
from moraine.ingest import processes
from moraine.log import get_logger
from moraine.orchestration.long_runs import blocks_scheduler
from moraine.orchestration.spark import spark_is_submitted, spark_session, submit
from moraine.settings import get_settings
from moraine.spark.session import SessionFactory, warm_up

log = get_logger(__name__)


def take_files() -> PokeReturnValue:
    """Take dropped files."""
    settings = get_settings()
    if not (settings.ingest_is_on and settings.ingest.filedrop.prefixes):
        return _nothing_to_do("ingest is off, or ingest.filedrop.prefixes is empty")
    return PokeReturnValue(True, processes.watch_drops(is_over=blocks_scheduler))


def write(application: str) -> PokeReturnValue:
    """Write what clients send."""
    if not get_settings().ingest_is_on:
        return _nothing_to_do("ingest is off")
    return PokeReturnValue(True, _run("write", _write, application))


def read_topics(application: str) -> PokeReturnValue:
    """Read Kafka topics."""
    settings = get_settings()
    if not (settings.ingest_is_on and settings.ingest.kafka.enabled):
        return _nothing_to_do("ingest is off, or ingest.kafka.topics is empty")
    return PokeReturnValue(True, _run("kafka", processes.read_topics, application))


def _write(session: SessionFactory, *, is_over: Callable[[], bool]) -> int:
    """Start Spark's Python workers, for the first batch and the first purge on the same session,
    then write. A Spark that does not answer is a failure only if there is something to write."""
    try:
        warm_up(session(), ["moraine.ingest.writing.job", "moraine.operations.purge.executor_work"])
    except MoraineError as error:
        log.warning("ingest.warm_up.failed", error=error.code)
    return processes.write_ingested(session, is_over=is_over)


def _nothing_to_do(why: str) -> PokeReturnValue:
    log.info("ingest.run.waits", why=why)
    return PokeReturnValue(False)


def _run(name: str, work: Callable[..., int], application: str) -> int:
    """Work on the warm Connect server, or in an app submitted to a master. Returns how much the
    Connect server did."""
    try:
        if spark_is_submitted():
            submit(application, [name])
            return 0
        return work(spark_session, is_over=blocks_scheduler)
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
