"""Spark sessions on a Connect server, and Spark's errors translated to Moraine's."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from moraine.errors import (
    MoraineError,
    SparkJobFailed,
    SparkUnavailable,
    StorageRefused,
    error_named,
)
from moraine.log import get_logger

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import SparkConnectClient

log = get_logger(__name__)

SessionFactory = Callable[[], "SparkSession"]
"""Gives the session to work with, when it is first needed."""

_DETAILS_LIMIT = 2000
# Only these: the text of a Spark error may quote what a table's writer chose.
_OUR_ERROR = re.compile(
    r"^\W*moraine(?:\.\w+)+\.(?P<kind>Storage\w+|MetadataDamaged): (?P<message>[^\n]+)", re.M
)
_TOKEN = re.compile(r"^token=")
_FORBIDDEN = re.compile(r"Service: S3, Status Code: 403")


def connect(url: str, *, shared: str | None = None) -> SparkSession:
    """A session on a Connect server.

    `shared` names a session that many processes use: the server then keeps one warm Python
    daemon for all of them instead of starting one each. It must not be stopped; if it was, its
    name cannot be used until the server restarts, and this returns a session of its own.
    """
    from pyspark.sql import SparkSession

    url = with_plain_token(url)
    if shared is None:
        return _impatient(SparkSession.builder.remote(url).getOrCreate())
    session = _impatient(SparkSession.builder.remote(f"{url};session_id={shared}").getOrCreate())
    if not _is_closed(session):
        return session
    log.warning("spark.shared_session.closed", session_id=shared)
    return _impatient(SparkSession.builder.remote(url).create())


def with_plain_token(url: str) -> str:
    """The URL of a server that is reached without TLS, with its token as a header.

    PySpark sends a token over TLS only, except to `localhost`. `use_ssl=false` in the URL says that
    the network is private, so that the token may be sent in the clear.
    """
    address, *parameters = url.split(";")
    if "use_ssl=false" not in map(str.lower, parameters):
        return url
    return ";".join(
        [address, *(_TOKEN.sub("authorization=Bearer%20", parameter) for parameter in parameters)]
    )


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

    Its own policy retries for ten minutes. A server that comes back after a crash knows neither the
    session nor its jobs, so a wait is useless once it is longer than a network hiccup: the step
    fails, and the ledger schedules the next attempt. This policy gives up after 16 seconds.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client: SparkConnectClient = session.client  # type: ignore[operator]
    client.set_retry_policies(
        [DefaultPolicy(max_retries=6, initial_backoff=50, backoff_multiplier=3, max_backoff=10_000)]
    )
    return session


def warm_up(session: SparkSession, modules: Sequence[str]) -> None:
    """Let the server start its Python workers and import these modules. The first Python job of a
    session waits three to six seconds for that."""
    with translated_errors():
        session.range(0, 4, 1, 4).mapInArrow(partial(_import, modules), "id long").collect()


def _import(modules: Sequence[str], batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    for module in modules:
        importlib.import_module(module)
    yield from batches


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate Spark's errors to Moraine's."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise _translated(error) from error
    except Exception as error:
        if type(error).__module__.startswith("grpc"):
            raise SparkUnavailable(
                f"Spark went away in the middle of a job ({type(error).__name__})."
            ) from error
        raise


def _translated(error: PySparkException) -> MoraineError:
    """Errors of our own code on executors, and of Iceberg's storage client, keep their kind."""
    details = str(error).split("JVM stacktrace")[0].strip()[:_DETAILS_LIMIT]
    if ours := _OUR_ERROR.search(str(error)):
        kind = error_named(ours["kind"]) or SparkUnavailable
        return kind(ours["message"], details=details)
    if _FORBIDDEN.search(str(error)):
        return StorageRefused(
            "The storage refuses to have the table's metadata read.", details=details
        )
    job_failed = SparkUnavailable if _session_is_gone(error) else SparkJobFailed
    return job_failed(f"A Spark job failed ({_condition(error)}).", details=details)


def _session_is_gone(error: PySparkException) -> bool:
    """A server that was restarted does not know the session."""
    return _condition(error).startswith(("INVALID_HANDLE", "RETRIES_EXCEEDED"))


def _condition(error: Exception) -> str:
    condition = getattr(error, "getCondition", lambda: None)()
    return condition or type(error).__name__
