"""Clients of the gateway who drop tables, for the tests of delegated drops."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from moraine.local.part import free_ports
from support.platform import CATALOG, NAMESPACE, Platform, Table
from support.processes import await_answer, running

PATIENCE = 150


@dataclass(frozen=True)
class GatewayClient:
    """Sees every answer of the gateway, good or bad."""

    url: str
    """Of the catalog, as a client of the gateway calls it."""

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        return requests.request(method, f"{self.url}/v1/{path}", timeout=PATIENCE, **options)

    def load(self, table: Table) -> requests.Response:
        return self.request("GET", self._path(table))

    def exists(self, table: Table) -> bool:
        return self.request("HEAD", self._path(table)).status_code == 204

    def names(self) -> set[str]:
        listed = self.request("GET", f"namespaces/{NAMESPACE}/tables").json()
        return {identifier["name"] for identifier in listed["identifiers"]}

    def drop(
        self, table: Table, *, purge: bool = True, key: str | None = None
    ) -> requests.Response:
        return self.request(
            "DELETE",
            self._path(table),
            params={"purgeRequested": str(purge).lower()},
            headers={"Idempotency-Key": key} if key else {},
        )

    def dropping(self, table: Table, key: str | None = None) -> Future[requests.Response]:
        """The same in the background."""
        future: Future[requests.Response] = Future()

        def run() -> None:
            try:
                future.set_result(self.drop(table, key=key))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="dropping", daemon=True).start()
        return future

    def create(self, name: str) -> requests.Response:
        field = {"id": 1, "name": "id", "type": "long", "required": False}
        schema = {"type": "struct", "schema-id": 0, "fields": [field]}
        body = {"name": name, "schema": schema}
        return self.request("POST", f"namespaces/{NAMESPACE}/tables", json=body)

    def commit(self, table: Table, **properties: str) -> requests.Response:
        updates = [{"action": "set-properties", "updates": properties}]
        return self.request(
            "POST", self._path(table), json={"requirements": [], "updates": updates}
        )

    def rename(self, source: str, destination: str) -> requests.Response:
        names = {
            end: {"namespace": [NAMESPACE], "name": name}
            for end, name in (("source", source), ("destination", destination))
        }
        return self.request("POST", "tables/rename", json=names)

    def _path(self, table: Table) -> str:
        return f"namespaces/{NAMESPACE}/tables/{table.name}"


def gateway_of(platform: Platform) -> GatewayClient:
    """The gateway in Airflow's api-server."""
    return GatewayClient(f"{platform.stack.airflow.url}/catalog/{CATALOG}")


@contextlib.contextmanager
def own_gateway(
    platform: Platform, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[GatewayClient, int]]:
    """Another gateway on the same platform, as `moraine api` serves it, and its process id."""
    port = free_ports().airflow
    env = {
        **platform.environment(),
        "MORAINE_FAILPOINTS": str(platform.failpoints.folder),
        "MORAINE_API__PORT": str(port),
        **(settings or {}),
    }
    log = folder / f"api-{port}.log"
    command = [str(Path(sys.executable).parent / "moraine"), "api"]
    url = f"http://127.0.0.1:{port}"
    with running(command, folder, {**os.environ, **env}, log) as process:
        await_answer(f"{url}/delegation-service/api/health/live", process, log, 60)
        yield GatewayClient(f"{url}/catalog/{CATALOG}"), process.pid
