"""Iceberg's own REST catalog fixture, on local files and a SQLite database."""

from __future__ import annotations

import os
import shutil
import urllib.request
from datetime import datetime
from pathlib import Path

from moraine.local.classes import Classes
from moraine.local.files import file_uri
from moraine.local.jars import Jars
from moraine.local.java import find_java
from moraine.local.part import LOOPBACK, Command, Part, Report
from moraine.settings import StackSettings


class RestCatalog(Part):
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
        """SQLite's driver unpacks its library anew at every start."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()

    def command(self) -> Command:
        classes = [self._classes.folder, *self._jars.class_path("catalog")]
        return Command(
            argv=(
                str(find_java().java),
                f"-Xmx{self._settings.catalog_memory}",
                "-XX:+UseSerialGC",
                "-XX:-UsePerfData",
                f"-Djava.io.tmpdir={self._scratch}",
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
                "-cp",
                os.pathsep.join(str(path) for path in classes),
                "org.apache.iceberg.rest.LoopbackCatalog",
            ),
            directory=self._folder,
            env={
                "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
                "CATALOG_URI": f"jdbc:sqlite:{self._folder / 'catalog.db'}",
                "CATALOG_CLIENTS": "1",  # SQLite has one writer
                "CATALOG_JDBC_SCHEMA__VERSION": "V1",
                "CATALOG_JDBC_STRICT__MODE": "true",
                "CATALOG_WAREHOUSE": file_uri(self.warehouse),
                "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
                "CATALOG_REST_PORT": str(self._settings.ports.catalog),
            },
        )

    def probe(self, since: datetime) -> None:
        del since
        with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as answer:  # noqa: S310
            answer.read()
