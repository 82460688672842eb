"""Iceberg's REST catalog fixture with its tables on S3, and Spark as a writer of such tables.

with running_s3_catalog(tmp_path / "catalog", store.properties(), "s3://lake/warehouse") as url:
    add_catalog(spark, "lake", url, store.properties())
    write_table(spark, "lake.shop.orders", snapshots=3)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moraine.local.catalog import fixture_command
from moraine.local.jars import Classes, Jars
from moraine.local.java import find_java
from moraine.local.part import free_ports, silent
from moraine.settings import get_settings
from support.processes import await_answer, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"


def fetch_jars(*configurations: str) -> Jars:
    """Jars that the stack itself has no use for: fetched by the first test that wants them."""
    settings = get_settings().stack
    jars = Jars.pinned(settings.cache)
    jars.fetch(find_java(), silent, settings.ivy_settings, configurations)
    return jars


@contextlib.contextmanager
def running_s3_catalog(
    folder: Path, store: Mapping[str, str], warehouse: str, *, heap: str = "192m"
) -> Iterator[str]:
    """Its URL. `store` are the properties of an S3 store, as Iceberg names them. The catalog has no
    authentication and vends nothing: see `vending` for that."""
    jars = fetch_jars("catalog", "s3")
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    classes = Classes(folder, jars)
    classes.compile(find_java(), silent)
    port = free_ports().catalog
    command = fixture_command(
        [classes.folder, *jars.class_path("catalog"), *jars.class_path("s3")],
        folder,
        scratch,
        port,
        heap,
        {"warehouse": warehouse, "io-impl": S3_FILE_IO, **store},
    )
    url, log = f"http://127.0.0.1:{port}", folder / "catalog.log"
    with running(command.argv, folder, command.env, log) as process:
        await_answer(f"{url}/v1/config", process, log, 60)
        yield url


def add_catalog(
    spark: SparkSession, name: str, url: str, properties: Mapping[str, str] | None = None
) -> None:
    """Let a session see a REST catalog. A name can be given only once to a session."""
    given = {
        "type": "rest",
        "uri": url,
        "cache-enabled": "false",
        "io-impl": S3_FILE_IO,
        **(properties or {}),
    }
    for key, value in given.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    # Last: from here on the session may load it.
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")


def write_table(
    spark: SparkSession,
    subject: str,
    *,
    snapshots: int = 2,
    files_each: int = 1,
    **properties: str,
) -> None:
    """A table (catalog.namespace.name) of so many appends and, after them, a row-level delete."""
    given = {"format-version": "2", "write.delete.mode": "merge-on-read", **properties}
    options = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {subject.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE {subject} (id BIGINT, double BIGINT) USING iceberg TBLPROPERTIES ({options})"
    )
    for number in range(snapshots):
        first = 100 * number
        # One partition of Spark is one file, as long as nothing shuffles them.
        rows = spark.range(first, first + 100, 1, files_each).selectExpr("id", "id * 2 AS double")
        rows.writeTo(subject).option("distribution-mode", "none").append()
    spark.sql(f"DELETE FROM {subject} WHERE id = 7")
