"""Iceberg's own REST catalog fixture on a SQLite database, with tables in local files."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from moraine.local.home import file_uri
from moraine.local.jars import Classes, Jars
from moraine.local.java import find_java
from moraine.local.part import LOOPBACK, Command, Part, Report
from moraine.settings import StackSettings


class CatalogServer(Part):
    name = "catalog"

    def __init__(self, settings: StackSettings, jars: Jars, classes: Classes) -> None:
        self._settings = settings
        self._jars = jars
        self._classes = classes
        self._folder = settings.home / "catalog"
        self._scratch = self._folder / "scratch"

    @property
    def ports(self) -> dict[str, int]:
        return {"stack.ports.catalog": self._settings.ports.catalog}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._settings.ports.catalog}"

    @property
    def warehouse(self) -> Path:
        return self._settings.home / "warehouse"

    def prepare(self, report: Report) -> None:
        java = find_java()
        self._jars.fetch(java, report, self._settings.ivy_settings)
        for folder in (self.warehouse, self._folder):
            folder.mkdir(exist_ok=True)
        self._classes.compile(java, report)

    def clean(self) -> None:
        """SQLite's driver unpacks its library again at every start."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()

    def command(self) -> Command:
        return fixture_command(
            [self._classes.folder, *self._jars.class_path("catalog")],
            self._folder,
            self._scratch,
            self._settings.ports.catalog,
            self._settings.catalog_memory,
            {
                "warehouse": file_uri(self.warehouse),
                "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            },
        )

    def probe(self, since: datetime) -> None:
        del since
        with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as answer:  # noqa: S310
            answer.read()


def fixture_command(
    class_path: Iterable[Path],
    folder: Path,
    scratch: Path,
    port: int,
    memory: str,
    properties: Mapping[str, str],
) -> Command:
    """The fixture on 127.0.0.1 with its database in `folder`. `properties` are Iceberg's."""
    own = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "clients": "1",  # SQLite has one writer
        "jdbc.schema-version": "V1",
        "jdbc.strict-mode": "true",
        "rest.port": str(port),
    }
    return Command(
        argv=(
            str(find_java().java),
            f"-Xmx{memory}",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={scratch}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "-cp",
            os.pathsep.join(str(path) for path in class_path),
            "org.apache.iceberg.rest.LoopbackCatalog",
        ),
        directory=folder,
        env={_variable(name): value for name, value in {**own, **properties}.items()},
    )


def _variable(name: str) -> str:
    """The variable from which the fixture reads a property."""
    return "CATALOG_" + name.upper().replace("-", "__").replace(".", "_")
