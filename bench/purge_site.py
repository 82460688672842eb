"""The site of the purge benchmark: one Spark session, catalogs, fresh tables.

The session is a classic one with the embedded Spark's own configuration: Iceberg's actions cannot
be called over Connect, and both contestants must run in the same Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from pyspark.sql import SparkSession

from moraine.local.jars import Jars
from moraine.local.java import find_java
from moraine.local.part import silent
from moraine.local.stack import Stack
from moraine.settings import CatalogSettings, get_settings
from s3_servers import BUCKET, S3Server
from support.s3_catalog import S3_FILE_IO, running_s3_catalog

FILES_PER_MANIFEST = 500
SNAPSHOTS = 10
_CLASS_PATH = "spark.driver.extraClassPath"
_SOURCE = Path(__file__).with_name("BenchTables.java")


@dataclass(frozen=True)
class BenchTable:
    catalog: str
    namespace: str
    name: str
    files: int
    """Data files; the metadata adds a few hundred."""
    paths: Path
    """The list of the data files, a line each."""
    loaded: Any
    """Iceberg's own object."""

    @property
    def location(self) -> str:
        return str(self.loaded.location())

    @property
    def metadata_location(self) -> str:
        return str(self.loaded.operations().current().metadataFileLocation())

    @property
    def folder(self) -> Path:
        """On the local disk."""
        return Path(urlsplit(self.location).path)

    @property
    def prefix(self) -> str:
        """In the bucket."""
        return urlsplit(self.location).path.strip("/")


class Site:
    """`lakes` are S3 servers and the catalogs with tables there, by the catalogs' names."""

    def __init__(
        self, stack: Stack, spark: SparkSession, lakes: Mapping[str, tuple[S3Server, str]]
    ) -> None:
        self.spark = spark
        self.home = stack.home
        self.servers = {name: server for name, (server, _) in lakes.items()}
        here = CatalogSettings(
            uri=stack.catalog.url, allowed_locations=[str(stack.home / "warehouse")]
        )
        self.catalogs = {"demo": here} | {
            name: CatalogSettings.model_validate(
                {
                    "uri": url,
                    "storage": server.properties,
                    "allowed_locations": [f"s3://{BUCKET}/warehouse"],
                }
            )
            for name, (server, url) in lakes.items()
        }
        self._numbers = itertools.count()

    @cached_property
    def jvm(self) -> Any:
        return self.spark._jvm

    @cached_property
    def spark_process(self) -> psutil.Process:
        return psutil.Process(self.jvm.java.lang.ProcessHandle.current().pid())

    def local_table(self, files: int) -> BenchTable:
        """A table whose data files are there, empty."""
        return self._make("demo", files, touch=True)

    def s3_table(self, files: int, lake: str) -> BenchTable:
        """A table whose data files are there, empty."""
        table = self._make(lake, files, touch=False)
        keys = table.paths.with_suffix(".keys")
        keys.write_text(table.paths.read_text().replace(f"s3://{BUCKET}/", ""))
        self.servers[lake].put_empty(keys)
        return table

    def _make(self, catalog: str, files: int, *, touch: bool) -> BenchTable:
        number = next(self._numbers)
        # Alone in its namespace: a purge looks at what lies beside a table.
        namespace, name = f"bench_{number}", "events"
        self.spark.sql(f"CREATE NAMESPACE {catalog}.{namespace}")
        self.spark.sql(
            f"""
            CREATE TABLE {catalog}.{namespace}.{name}
                (id BIGINT, account BIGINT, kind STRING, body STRING, day STRING)
            USING iceberg PARTITIONED BY (day) TBLPROPERTIES ('format-version' = '2')
            """
        )
        full_name = f"{catalog}.{namespace}.{name}"
        load = self.jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        loaded = load(self.spark._jsparkSession, full_name)
        paths = self.home / f"{namespace}.paths"
        self.jvm.moraine.bench.BenchTables.fill(
            loaded, files, FILES_PER_MANIFEST, SNAPSHOTS, touch, str(paths)
        )
        loaded.refresh()
        return BenchTable(catalog, namespace, name, files, paths, loaded)

    def collect_garbage(self) -> None:
        """No contestant pays for the garbage of the one before."""
        self.jvm.java.lang.System.gc()


@contextlib.contextmanager
def open_site(stack: Stack, servers: Mapping[str, S3Server]) -> Iterator[Site]:
    """PostgreSQL and the catalog of a stack, a catalog on each S3 server, and Spark with all."""
    stack.up({"postgres", "catalog"})
    stack.spark.prepare(silent)
    stack.spark.clean()
    os.environ.update(stack.environment())
    get_settings.cache_clear()
    with contextlib.ExitStack() as running:
        lakes = {
            name: (server, running.enter_context(_running_lake(stack.home / name, server)))
            for name, server in servers.items()
        }
        spark = _open_spark(stack, lakes)
        running.callback(spark.stop)
        yield Site(stack, spark, lakes)


def _open_spark(stack: Stack, lakes: Mapping[str, tuple[S3Server, str]]) -> SparkSession:
    # Only Iceberg's jars: without the stack's own file system, which writes no checksums, files are
    # what Spark makes of them everywhere.
    jars = Jars.pinned(stack.settings.cache).class_path("spark")
    class_path = os.pathsep.join(str(path) for path in [_compile(stack, jars), *jars])
    builder = SparkSession.builder.config(_CLASS_PATH, class_path)
    for name, (server, url) in lakes.items():
        options = {"type": "rest", "uri": url, "io-impl": S3_FILE_IO, "cache-enabled": "false"}
        prefix = f"spark.sql.catalog.{name}"
        builder = builder.config(prefix, "org.apache.iceberg.spark.SparkCatalog")
        for option, value in {**options, **server.properties}.items():
            builder = builder.config(f"{prefix}.{option}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _compile(stack: Stack, jars: list[Path]) -> Path:
    target = stack.home / "bench-classes"
    target.mkdir()
    class_path = os.pathsep.join([*map(str, jars), f"{os.environ['SPARK_HOME']}/jars/*"])
    javac = find_java().javac
    subprocess.run(
        [javac, "-proc:none", "-nowarn", "-cp", class_path, "-d", target, _SOURCE], check=True
    )
    return target


def _running_lake(folder: Path, s3: S3Server) -> contextlib.AbstractContextManager[str]:
    warehouse = f"s3://{BUCKET}/warehouse"
    return running_s3_catalog(folder, s3.properties, warehouse, heap="256m")
