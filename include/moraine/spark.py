"""Spark sessions for steps: on a warm Connect server, interruptible, with errors told apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moraine import errors
from moraine.errors import MoraineError, SparkJobFailed, SparkUnavailable, StorageRefused
from moraine.log import get_logger
from moraine.tasks.worker import Work

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import SparkConnectClient

log = get_logger(__name__)

SessionFactory = Callable[[], "SparkSession"]
"""Gives the session to work with, when it is first needed."""

_DETAILS_LIMIT = 2000
_OUR_ERROR = re.compile(
    r"^\W*moraine\.errors\.(?P<kind>Storage\w+|MetadataDamaged): (?P<message>[^\n]+)", re.M
)
_FORBIDDEN = re.compile(r"Service: S3, Status Code: 403")


def connect(url: str, *, shared: str | None = None) -> SparkSession:
    """A session on a Connect server.

    `shared` names a session that many processes use: the server then keeps one warm Python
    daemon for all of them instead of starting one each. Nobody should stop it; if somebody did,
    its name is of no use until the server is restarted, and this gives a session of its own.
    """
    from pyspark.sql import SparkSession

    if shared is None:
        return _impatient(SparkSession.builder.remote(url).getOrCreate())
    session = _impatient(SparkSession.builder.remote(f"{url};session_id={shared}").getOrCreate())
    if not _is_closed(session):
        return session
    log.warning("spark.shared_session.closed", session_id=shared)
    return _impatient(SparkSession.builder.remote(url).create())


def _is_closed(session: SparkSession) -> bool:
    from pyspark.errors import PySparkException

    try:
        return not session.version
    except PySparkException as error:
        if _condition(error) == "INVALID_HANDLE.SESSION_CLOSED":
            return True
        raise


def _impatient(session: SparkSession) -> SparkSession:
    """Bound how long the client waits for a server that went away.

    Its own policy tries for ten minutes. A server that comes back after a crash knows neither
    the session nor its jobs, so waiting for longer than a hiccup of the network lasts is of no
    use: the step fails, and the ledger schedules the next attempt. This is 16 seconds.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: SparkConnectClient = session.client  # type: ignore[operator]
    client.set_retry_policies(
        [DefaultPolicy(max_retries=6, initial_backoff=50, backoff_multiplier=3, max_backoff=10_000)]
    )
    return session


@contextmanager
def session_for(
    factory: SessionFactory, work: Work, *, patience: float = 0
) -> Iterator[SparkSession]:
    """A session whose jobs end when the step loses its lease or is cancelled.

    Jobs of an earlier attempt that nobody waits for any more are interrupted first. A worker
    that lost its lease interrupts only its own: by then others may be its successor's. A job
    whose executors ask for themselves whether they may go on has `patience` seconds to end.
    """
    task_tag = f"moraine-{work.task.task_id}"
    own_tag = f"{task_tag}-v{work.attempt.claim.version}"
    with telling_apart():
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


@contextmanager
def telling_apart() -> Iterator[None]:
    """Spark's errors in our own terms."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise _told_apart(error) from error
    except Exception as error:
        if type(error).__module__.startswith("grpc"):
            raise SparkUnavailable(
                f"Spark went away in the middle of a job ({type(error).__name__})."
            ) from error
        raise


def _told_apart(error: PySparkException) -> MoraineError:
    """What an executor of ours or Iceberg's storage client said, in the terms of this side."""
    details = str(error).split("JVM stacktrace")[0].strip()[:_DETAILS_LIMIT]
    if ours := _OUR_ERROR.search(str(error)):
        kind = getattr(errors, ours["kind"], SparkUnavailable)
        found: MoraineError = kind(ours["message"], details=details)
        return found
    if _FORBIDDEN.search(str(error)):
        return StorageRefused(
            "The storage refuses to have the table's metadata read.", details=details
        )
    kind = SparkUnavailable if _session_is_gone(error) else SparkJobFailed
    return kind(f"A Spark job failed ({_condition(error)}).", details=details)


def _session_is_gone(error: PySparkException) -> bool:
    """A server that was started anew knows nothing of the session."""
    return _condition(error).startswith(("INVALID_HANDLE", "RETRIES_EXCEEDED"))


def _condition(error: Exception) -> str:
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or type(error).__name__
