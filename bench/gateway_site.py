"""The site of the gateway benchmark: one catalog, and the servers in front of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from moraine.local.stack import Stack
from moraine.migrations import upgrade
from resources import cpu_seconds
from support.processes import await_answer, running

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
        return {name: cpu_seconds(process) for name, process in self.processes.items()}


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
    with _running(folder, "caddy", command, home, door) as pid:
        yield pid


@contextlib.contextmanager
def _running_gateway(folder: Path, door: Door, env: Mapping[str, str]) -> Iterator[int]:
    command = [str(_BIN / "moraine"), "api", "--port", str(door.port)]
    with _running(folder, "gateway", command, env, door) as pid:
        yield pid


@contextlib.contextmanager
def _running(
    folder: Path, name: str, command: list[str], env: Mapping[str, str], door: Door
) -> Iterator[int]:
    log = folder / f"{name}.log"
    with running(command, folder, env, log, grace=20) as process:
        await_answer(f"http://127.0.0.1:{door.port}{door.path}/v1/config", process, log, 60)
        yield process.pid
