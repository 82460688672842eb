"""Iceberg's own compatibility kit for REST catalogs (RCK), and something to run it against.

with running_site(tmp_path, Way.KEYED) as site:
    outcomes = run_kit(site.url, tmp_path / "kit")
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from moraine.local.catalog import fixture_command
from moraine.local.home import file_uri
from moraine.local.jars import Classes
from moraine.local.java import find_java
from moraine.local.part import silent
from moraine.local.stack import Stack
from moraine.migrations import upgrade
from support.processes import await_answer, running
from support.s3_catalog import fetch_jars

SUITE = "org.apache.iceberg.rest.RESTCompatibilityKitSuite"
_SECONDS = 600
_PROPERTIES = {
    "rck.local": "false",
    "rck.purge-test-namespaces": "true",
    "rck.supports-serverside-retry": "true",
    "org.slf4j.simpleLogger.defaultLogLevel": "error",
}


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ABORTED = "aborted"
    """An assumption of the test's own does not hold for this catalog."""
    SKIPPED = "skipped"


Outcomes = Mapping[str, Outcome]
"""By test."""


def run_kit(url: str, folder: Path) -> Outcomes:
    """Every test of the kit against the catalog at `url`, which must be empty."""
    jars = fetch_jars("catalog", "rck")
    class_path = [*jars.class_path("rck"), *jars.class_path("catalog")]
    reports = folder / "reports"
    command = [
        find_java().java,
        "-Xmx768m",
        *(f"-D{name}={value}" for name, value in {**_PROPERTIES, "uri": url}.items()),
        *("-cp", os.pathsep.join(str(path) for path in class_path)),
        *("org.junit.platform.console.ConsoleLauncher", "execute", f"--select-class={SUITE}"),
        *("--details=summary", "--disable-banner", f"--reports-dir={reports}"),
    ]
    folder.mkdir(parents=True)
    with _alone(), (folder / "kit.log").open("wb") as log:
        # It exits with 1 if a test failed: the reports say which.
        subprocess.run(command, cwd=folder, stdout=log, stderr=log, timeout=_SECONDS, check=False)
    found: dict[str, Outcome] = {}
    for report in reports.glob("TEST-*.xml"):
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
            assert name not in found, f"{name} ran twice"
            found[name] = _outcome(case)
    assert found, f"The kit did not run.\n{(folder / 'kit.log').read_text()[-2000:]}"
    return found


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Some of its tests write to fixed paths below the system's temporary folder."""
    with (Path(tempfile.gettempdir()) / "iceberg-rck.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _outcome(case: ET.Element) -> Outcome:
    if case.find("failure") is not None or case.find("error") is not None:
        return Outcome.FAILED
    skipped = case.find("skipped")
    if skipped is None:
        return Outcome.PASSED
    return Outcome.ABORTED if "TestAbortedException" in (skipped.text or "") else Outcome.SKIPPED


def differences(one: Outcomes, other: Outcomes) -> dict[str, tuple[str, str]]:
    """The tests that did not end the same way, with both outcomes."""
    return {
        name: (one.get(name, "missing"), other.get(name, "missing"))
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    }


# --- What it runs against -------------------------------------------------------------------


class Way(StrEnum):
    """How requests get to the catalog."""

    DIRECT = "directly"
    KEYED = "through the gateway, with keys"
    KEYLESS = "through the gateway, keys off"


@dataclass(frozen=True)
class Site:
    url: str
    ledger_url: str
    gateway_log: Path

    def records(self) -> list[dict[str, object]]:
        """What became of the keys, by operation."""
        with psycopg.connect(self.ledger_url, row_factory=dict_row) as connection:
            return connection.execute(
                """
                SELECT intent->>'operation' AS operation, count(*) AS keys,
                       count(*) FILTER (WHERE http_status < 300) AS succeeded,
                       count(*) FILTER (WHERE http_status >= 400) AS refused,
                       count(*) FILTER (WHERE http_status IS NULL) AS open,
                       sum(attempts - 1) AS taken_over
                FROM idempotency_records GROUP BY 1 ORDER BY 2 DESC, 1
                """
            ).fetchall()

    def replays(self) -> int:
        return self.gateway_log.read_text().count("idempotency.replayed")


@contextlib.contextmanager
def running_site(folder: Path, way: Way) -> Iterator[Site]:
    """An empty catalog with an empty warehouse and, before it, a gateway with an empty ledger."""
    folder.mkdir(exist_ok=True)
    with Stack.ephemeral(folder / "stack") as stack, running_catalog(stack, folder / "catalog"):
        direct = Site(stack.catalog.url, stack.postgres.ledger_url, folder / "gateway.log")
        if way is Way.DIRECT:
            yield direct
            return
        stack.up({"postgres"})
        upgrade(direct.ledger_url)
        with running_gateway(stack, direct.gateway_log, keys=way is Way.KEYED) as url:
            yield Site(url, direct.ledger_url, direct.gateway_log)


@contextlib.contextmanager
def running_catalog(stack: Stack, folder: Path) -> Iterator[None]:
    """The fixture in the place of the stack's own, which is stricter than the kit expects: it
    wants a namespace to be made before its tables."""
    jars = fetch_jars("catalog")
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    classes = Classes(folder, jars)
    classes.compile(find_java(), silent)
    command = fixture_command(
        [classes.folder, *jars.class_path("catalog")],
        folder,
        scratch,
        stack.settings.ports.catalog,
        "256m",
        {
            "warehouse": file_uri(folder / "warehouse"),
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "jdbc.strict-mode": "false",
        },
    )
    log = folder / "catalog.log"
    with running(command.argv, folder, command.env, log) as process:
        await_answer(f"{stack.catalog.url}/v1/config", process, log, 60)
        yield


@contextlib.contextmanager
def running_gateway(stack: Stack, log: Path, *, keys: bool) -> Iterator[str]:
    """`moraine api` before the stack's catalog, without Airflow: purges are the catalog's."""
    port = stack.settings.ports.airflow
    environment = stack.environment(
        {
            "MORAINE_GATEWAY__PURGE__TASK_TYPE": "local",
            "MORAINE_IDEMPOTENCY__ENABLED": str(keys).lower(),
        }
    )
    command = [str(Path(sys.executable).with_name("moraine")), "api", "--port", str(port)]
    url = f"http://127.0.0.1:{port}/catalog/demo"
    with running(command, log.parent, environment, log) as process:
        await_answer(f"{url}/v1/config", process, log, 60)
        yield url
