"""Where the contestants of the purge benchmark meet: one Spark session, catalogs, fresh tables.

The session is a classic one with the embedded Spark's own configuration: Iceberg's actions cannot
be called over Connect, and both contestants shall run in the same Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import psutil
from pyspark.sql import SparkSession

from moraine.local.catalog import fixture_command
from moraine.local.classes import Classes
from moraine.local.jars import Jars
from moraine.local.java import find_java
from moraine.local.part import silent
from moraine.local.ports import free_ports
from moraine.local.stack import Stack
from moraine.settings import CatalogSettings, get_settings
from s3_servers import BUCKET, S3Server

FILES_PER_MANIFEST = 500
SNAPSHOTS = 10
_S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
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
        self.catalogs = {"demo": CatalogSettings(uri=stack.catalog.url)} | {
            name: CatalogSettings.model_validate({"uri": url, "storage": server.properties})
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
        """Nobody pays for what the one before left."""
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
        options = {"type": "rest", "uri": url, "io-impl": _S3_FILE_IO, "cache-enabled": "false"}
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


@contextlib.contextmanager
def _running_lake(folder: Path, s3: S3Server) -> Iterator[str]:
    """The catalog fixture once more, with its tables on S3."""
    settings = get_settings().stack
    jars = Jars.pinned(settings.cache)
    jars.fetch(find_java(), silent, settings.ivy_settings, ("catalog", "s3"))
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
        "256m",
        {"warehouse": f"s3://{BUCKET}/warehouse", "io-impl": _S3_FILE_IO, **s3.properties},
    )
    url = f"http://127.0.0.1:{port}"
    with (folder / "catalog.log").open("wb") as log:
        process = subprocess.Popen(
            command.argv, cwd=folder, env={**os.environ, **command.env}, stdout=log, stderr=log
        )
        try:
            _await_answer(f"{url}/v1/config", process)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise
        time.sleep(0.1)


class PeakMemory:
    """The most resident memory a process was seen with, in MB.

    with PeakMemory(psutil.Process()) as peak:
        ...
    print(peak.mb)
    """

    _EVERY = 0.02

    def __init__(self, process: psutil.Process) -> None:
        self.mb = 0.0
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(self._EVERY):
            self._look()

    def _look(self) -> None:
        self.mb = max(self.mb, self._process.memory_info().rss / 1e6)
