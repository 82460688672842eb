"""Where the contestants of the gateway benchmark meet: one catalog, and what stands before it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import psutil
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from moraine.local.stack import Stack
from moraine.migrations import upgrade

NAMESPACE = "bench"
_BIN = Path(sys.executable).parent
_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "customer", StringType()),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "at", TimestamptzType()),
)
# As small after a thousand commits as after the first.
_PROPERTIES = {
    "write.metadata.previous-versions-max": "1",
    "write.metadata.delete-after-commit.enabled": "true",
}
_CADDYFILE = """
{{
    admin off
    auto_https off
    persist_config off
}}
http://127.0.0.1:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{catalog}
}}
"""


@dataclass(frozen=True)
class Door:
    """An address of the catalog."""

    port: int
    path: str = ""


@dataclass(frozen=True)
class Site:
    catalog: Door
    proxy: Door
    gateway: Door
    processes: Mapping[str, psutil.Process]

    def cpu_seconds(self) -> dict[str, float]:
        """What each part has used so far, its children included."""
        return {name: _cpu_seconds(process) for name, process in self.processes.items()}


@contextlib.contextmanager
def running_site(folder: Path, *, tables: int) -> Iterator[Site]:
    with Stack.ephemeral(folder / "stack") as stack:
        stack.up({"postgres", "catalog"})
        upgrade(stack.postgres.ledger_url)
        _make_tables(stack.catalog.url, tables)
        ports = stack.settings.ports
        catalog, proxy = Door(ports.catalog), Door(ports.spark_ui)
        gateway = Door(ports.airflow, "/catalog/demo")
        with (
            _running_caddy(folder, proxy, catalog) as caddy,
            _running_gateway(folder, gateway, stack.environment()) as api,
        ):
            pids = {
                "gateway": api,
                "proxy": caddy,
                "catalog": stack.pid("catalog"),
                "PostgreSQL": stack.pid("postgres"),
            }
            processes = {name: psutil.Process(pid) for name, pid in pids.items() if pid}
            yield Site(catalog, proxy, gateway, processes)


def table_name(number: int) -> str:
    return f"t{number}"


def _make_tables(url: str, count: int) -> None:
    catalog = load_catalog("bench", type="rest", uri=url)
    catalog.create_namespace(NAMESPACE)
    for number in range(count):
        catalog.create_table((NAMESPACE, table_name(number)), _SCHEMA, properties=_PROPERTIES)


@contextlib.contextmanager
def _running_caddy(folder: Path, door: Door, catalog: Door) -> Iterator[int]:
    file = folder / "Caddyfile"
    file.write_text(_CADDYFILE.format(port=door.port, catalog=catalog.port))
    home = {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [str(_BIN / "caddy"), "run", "--config", str(file), "--adapter", "caddyfile"]
    with _running(command, folder / "caddy.log", home, door) as pid:
        yield pid


@contextlib.contextmanager
def _running_gateway(folder: Path, door: Door, env: Mapping[str, str]) -> Iterator[int]:
    command = [str(_BIN / "moraine"), "api", "--port", str(door.port)]
    with _running(command, folder / "gateway.log", env, door) as pid:
        yield pid


@contextlib.contextmanager
def _running(
    command: Sequence[str], log: Path, env: Mapping[str, str], door: Door
) -> Iterator[int]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=file, stderr=file)
        try:
            _await_answer(f"http://127.0.0.1:{door.port}{door.path}/v1/config", process, log)
            yield process.pid
        finally:
            process.terminate()
            process.wait(20)


def _await_answer(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        with contextlib.suppress(URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"{url} does not answer.\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


def _cpu_seconds(process: psutil.Process) -> float:
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
