"""Nessie as a second catalog: one that vends keys of the store's STS in a way of its own.

It puts them into `config`, without `storage-credentials` and without a time of expiry, whether it
is asked to or not; adds a uuid to each table's location; gives a table `gc.enabled=false` unless
its creator says otherwise; and names no older metadata file in a table's metadata log, although it
leaves them where they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moraine.local.java import Java, _candidates, version_of
from moraine.local.part import free_ports
from support.processes import await_answer, running
from support.s3_catalog import fetch_jars

if TYPE_CHECKING:
    from support.seaweedfs import SeaweedFS

_OLDEST_JAVA = 21
_S3 = "nessie.catalog.service.s3.default-options."


@dataclass(frozen=True)
class Nessie:
    url: str
    """Of the Iceberg REST catalog. Its `/v1/config` names the prefix for everything else."""
    warehouse: str

    def spark_properties(self) -> dict[str, str]:
        """For `add_catalog`: Spark then reads and writes with vended keys."""
        return {"header.X-Iceberg-Access-Delegation": "vended-credentials"}


def find_newer_java() -> Java:
    """A Java that Nessie runs on, or the test is skipped: the stack's own is too old for it."""
    named = [Path(home) for name, home in os.environ.items() if name.startswith("JAVA_HOME")]
    homes = [*named, *_candidates(os.environ)]
    versions = {home: version_of(home) for home in homes if (home / "bin" / "java").exists()}
    for home, version in versions.items():
        if version and version >= _OLDEST_JAVA:
            return Java(home)
    found = ", ".join(sorted({str(version) for version in versions.values()})) or "none"
    pytest.skip(f"Nessie needs Java {_OLDEST_JAVA} or newer, and this machine has {found}.")


@contextlib.contextmanager
def running_nessie(folder: Path, store: SeaweedFS, warehouse: str) -> Iterator[Nessie]:
    java = find_newer_java()
    [jar] = fetch_jars("nessie").class_path("nessie")
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports()
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(ports.catalog),
        "quarkus.http.access-log.enabled": "false",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(ports.spark_ui),
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": warehouse,
        f"{_S3}endpoint": store.endpoint,
        f"{_S3}path-style-access": "true",
        f"{_S3}region": store.region,
        f"{_S3}request-signing-enabled": "false",
        f"{_S3}access-key": "urn:nessie-secret:quarkus:store",
        "store.name": store.access_key,
        "store.secret": store.secret_key,
        f"{_S3}sts-endpoint": store.endpoint,
        f"{_S3}client-iam.enabled": "true",
        f"{_S3}client-iam.assume-role": store.role_arn,
    }
    # In a file: a command line is there for everybody to read.
    settings = folder / "application.properties"
    settings.touch(mode=0o600)
    settings.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = [
        str(java.java),
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        f"-Dquarkus.config.locations={settings}",
        "-jar",
        str(jar),
    ]
    url, log = f"http://127.0.0.1:{ports.catalog}/iceberg", folder / "nessie.log"
    with running(command, folder, {}, log) as process:
        await_answer(f"{url}/v1/config", process, log, 120)
        yield Nessie(url, warehouse)
