"""The Spark session of a leased step: the only place in `tasks/` that speaks PySpark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moraine.spark.session import SessionFactory, translated_errors
from moraine.tasks.worker import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session_for(
    factory: SessionFactory, work: Work, *, patience: float = 0
) -> Iterator[SparkSession]:
    """A session whose jobs end when the step loses its lease or is cancelled.

    Jobs that an earlier attempt left running are interrupted first. A worker that lost its lease
    interrupts only its own: the others may already be its successor's. A job whose executors check
    the fence themselves gets `patience` seconds to end.
    """
    task_tag = f"moraine-{work.task.task_id}"
    own_tag = f"{task_tag}-v{work.attempt.claim.version}"
    with translated_errors():
        session = factory()
        session.interruptTag(task_tag)
        session.addTag(task_tag)
        session.addTag(own_tag)
        work.attempt.on_stop(lambda: session.interruptTag(own_tag), patience=patience)
        try:
            yield session
        finally:
            session.removeTag(own_tag)
            session.removeTag(task_tag)
