"""Spark's errors in Moraine's terms."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from moraine.errors import (
    MetadataDamaged,
    MoraineError,
    SparkJobFailed,
    SparkUnavailable,
    StorageRefused,
    StorageUnavailable,
    error_named,
)
from moraine.spark.session import translated_errors

TRACE = """Job aborted due to stage failure
  File "worker.py", line 1, in work
{error}

JVM stacktrace: at org.apache.spark"""


def translated(text: str) -> MoraineError:
    with pytest.raises(MoraineError) as raised, translated_errors():
        raise PySparkException(text)
    return raised.value


@pytest.mark.parametrize("kind", [StorageUnavailable, StorageRefused, MetadataDamaged])
@pytest.mark.parametrize("module", ["moraine.errors", "moraine.storage.problems"])
def test_spark_executor_errors_keep_their_kind_wherever_they_are_defined(
    kind: type[MoraineError], module: str
) -> None:
    error = translated(TRACE.format(error=f"{module}.{kind.__name__}: The bucket is away."))
    assert type(error) is kind
    assert str(error) == "The bucket is away."
    assert "JVM" not in (error.details or "")


@pytest.mark.parametrize(
    "text",
    [
        "moraine.errors.Cancelled: Cancelled on request.",
        "moraine.errors.TableNotFound: The catalog has no such table.",
        "ValueError: moraine.errors.StorageRefused: quoted",
    ],
)
def test_spark_errors_of_other_kinds_are_failures_of_the_job(text: str) -> None:
    assert type(translated(TRACE.format(error=text))) is SparkJobFailed


def test_spark_error_of_an_unknown_kind_is_transient() -> None:
    error = translated(TRACE.format(error="moraine.errors.StorageGone: It is gone."))
    assert type(error) is SparkUnavailable


def test_spark_error_is_found_by_its_name() -> None:
    assert error_named("StorageRefused") is StorageRefused
    assert error_named("PySparkException") is None
