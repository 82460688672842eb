"""The gateway before a real catalog: a way behind it that a test can break, callers, and what they
ask for.

    with Way(stack.catalog.url) as way, running_gateway(ledger, {"prod": way.url}) as base:
        caller = Caller(base)
        scene = Scene(Caller(stack.catalog.url))
        way.break_with(reset_after)
        caller.send(*scene.create_table("orders"), key="k")    # 502
        caller.send(*scene.create_table("orders"), key="k")    # 200, and one table
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import requests

from moraine.settings import Settings
from support.api_server import running_api
from support.keyed_catalog import Fault, KeyedCatalog, as_json
from support.processes import await_answer, running
from support.relay import Answer, Forward, Request, Scripted

KEY = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}

_numbers = itertools.count(1)
_run = f"{random.SystemRandom().randrange(16**6):06x}"


def new_key() -> str:
    return f"key-{_run}-{next(_numbers)}"


def gateway_settings(ledger: str, catalogs: Mapping[str, str], **sections: Any) -> Settings:
    """Purges are the catalog's own affair here."""
    gateway = {"purge": {"task_type": "local"}, **sections.pop("gateway", {})}
    return Settings(
        realm=sections.pop("realm", "demo"),
        ledger={"url": ledger, "pool_size": 4},
        api={"accept_airflow_tokens": False},
        catalogs={
            name: given if isinstance(given, dict) else {"uri": given}
            for name, given in catalogs.items()
        },
        gateway=gateway,
        **sections,
    )


@contextlib.contextmanager
def running_gateway(ledger: str, catalogs: Mapping[str, Any], **sections: Any) -> Iterator[str]:
    """Its address, below which the catalogs are."""
    with running_api(gateway_settings(ledger, catalogs, **sections)) as origin:
        yield f"{origin}/catalog"


class ApiProcess:
    """`moraine api` in a process of its own, at one port however often it is started."""

    def __init__(self, folder: Path, ledger: str, catalog: str, **more: str) -> None:
        self._folder = folder
        self._log = folder / "api.log"
        self._environment = {
            "MORAINE_LEDGER__URL": ledger,
            "MORAINE_API__ACCEPT_AIRFLOW_TOKENS": "false",
            "MORAINE_CATALOGS__PROD__URI": catalog,
            "MORAINE_GATEWAY__PURGE__TASK_TYPE": "local",
            **{f"MORAINE_{name.upper()}": value for name, value in more.items()},
        }
        (folder / "moraine.toml").touch()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port = int(server.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/catalog"

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Until the block ends, or something kills it."""
        main = "from moraine.cli import main; main()"
        argv = [sys.executable, "-c", main, "api", "--port", str(self._port)]
        with running(argv, self._folder, self._environment, self._log) as process:
            # It answers that there is no such route.
            await_answer(self.url, process, self._log, 60, lambda answer: True)
            yield process


class Way(KeyedCatalog):
    """From the gateway to the catalog. It knows no keys, and breaks as it is told to."""

    def __init__(self, upstream: str) -> None:
        super().__init__(lifetime=None, upstream=upstream)
        self.config = {}
        self.read_faults: list[Fault] = []

    def heal(self) -> None:
        """As it was made, and what it saw forgotten."""
        self.config = {}
        for kept in (self.faults, self.read_faults, self.seen, self.executed):
            kept.clear()

    def break_reads_with(self, *faults: Fault) -> None:
        """For the next reads other than that of the configuration, one each."""
        self.read_faults.extend(faults)

    def read(self, request: Request, forward: Forward) -> Answer:
        if self.read_faults:
            return self.read_faults.pop(0)(lambda: forward(request))
        return forward(request)

    def _execute_once(self, request: Request, forward: Forward) -> Answer:
        with self._lock:
            self.executed.append(request)
        return forward(request)


class ScriptedCatalog(Scripted):
    """Says what a test tells it to; where it has what is in it, it says by itself, unseen."""

    def answer(self, request: Request, forward: Forward) -> Answer:
        if request.path.endswith("/v1/config"):
            return as_json(200, {})
        return super().answer(request, forward)


@dataclass
class Caller:
    """Of a catalog, or of the gateway before it."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    session: Any = requests

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> requests.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        if key is not None:
            headers[KEY] = key
        if isinstance(body, bytes):
            options["data"] = body
            headers.setdefault("Content-Type", "application/json")
        elif body is not None:
            options["json"] = body
        return self.session.request(
            method, f"{self.url}/v1/{path}", headers=headers, **{"timeout": 30, **options}
        )

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.send("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> requests.Response:
        return self.send("POST", path, body, **options)

    def delete(self, path: str, **options: Any) -> requests.Response:
        return self.send("DELETE", path, **options)

    def done(self, ask: Ask, **options: Any) -> Any:
        """What is answered to something that must succeed."""
        response = self.send(*ask, **options)
        assert response.status_code in (200, 204), response.text
        return response.json() if response.content else None


@contextlib.contextmanager
def raw_request(
    url: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> Iterator[http.client.HTTPResponse]:
    """With a path as it is given: other clients write it in a way of their own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    content = None if body is None else json.dumps(body)
    kind = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, parts.path + path, content, {**kind, **(headers or {})})
        yield connection.getresponse()
    finally:
        connection.close()


class Ask(NamedTuple):
    """A request, in what it asks for."""

    method: str
    path: str
    body: Any = None


class Scene:
    """A namespace of a test's own, made at the catalog itself, and requests about what is in it."""

    def __init__(self, direct: Caller, name: str = "") -> None:
        self.direct = direct
        self.namespace = name or f"n{_run}x{next(_numbers)}"
        direct.done(Ask("POST", "namespaces", {"namespace": [self.namespace]}))

    # --- Requests ----------------------------------------------------------------------------

    def path(self, *parts: str) -> str:
        return "/".join(["namespaces", self.namespace, *(quote(part, safe="") for part in parts)])

    def create_namespace(self, name: str, **properties: str) -> Ask:
        body = {"namespace": [self.namespace, name], "properties": properties}
        return Ask("POST", "namespaces", body)

    def drop_namespace(self, name: str) -> Ask:
        return Ask("DELETE", f"namespaces/{self.namespace}%2E{name}")

    def update_namespace(self, removals: list[str], **updates: str) -> Ask:
        return Ask("POST", self.path("properties"), {"removals": removals, "updates": updates})

    def create_table(self, name: str, **more: Any) -> Ask:
        return Ask("POST", self.path("tables"), {"name": name, "schema": SCHEMA, **more})

    def register_table(self, name: str, metadata_location: str) -> Ask:
        body = {"name": name, "metadata-location": metadata_location}
        return Ask("POST", self.path("register"), body)

    def commit(self, table: str, *updates: Any, requirements: tuple[Any, ...] = ()) -> Ask:
        return Ask("POST", self.path("tables", table), self.change(table, *updates, *requirements))

    def append(self, table: str, number: int) -> Ask:
        """A snapshot without files, on top of what is there."""
        return Ask("POST", self.path("tables", table), self.appended(table, number))

    def transaction(self, *changes: Any) -> Ask:
        return Ask("POST", "transactions/commit", {"table-changes": list(changes)})

    def drop_table(self, name: str) -> Ask:
        return Ask("DELETE", self.path("tables", name))

    def rename_table(self, source: str, destination: str) -> Ask:
        return Ask("POST", "tables/rename", self._rename(source, destination))

    def create_view(self, name: str, **properties: str) -> Ask:
        version = {"view-version": self.version(1), "properties": properties}
        return Ask("POST", self.path("views"), {"name": name, "schema": SCHEMA, **version})

    def register_view(self, name: str, metadata_location: str) -> Ask:
        body = {"name": name, "metadata-location": metadata_location}
        return Ask("POST", self.path("register-view"), body)

    def replace_view(self, name: str, number: int, *requirements: Any) -> Ask:
        updates = [
            {"action": "add-view-version", "view-version": self.version(number)},
            {"action": "set-current-view-version", "view-version-id": -1},
        ]
        body = {"requirements": list(requirements), "updates": updates}
        return Ask("POST", self.path("views", name), body)

    def drop_view(self, name: str) -> Ask:
        return Ask("DELETE", self.path("views", name))

    def rename_view(self, source: str, destination: str) -> Ask:
        return Ask("POST", "views/rename", self._rename(source, destination))

    # --- Parts of requests -------------------------------------------------------------------

    def identifier(self, name: str) -> dict[str, Any]:
        return {"namespace": [self.namespace], "name": name}

    def change(self, table: str, *parts: Any) -> dict[str, Any]:
        """Updates have an action, requirements a type."""
        return {
            "identifier": self.identifier(table),
            "requirements": [part for part in parts if "action" not in part],
            "updates": [part for part in parts if "action" in part],
        }

    def appended(self, table: str, number: int) -> dict[str, Any]:
        loaded = self.load(table)
        metadata = loaded["metadata"]
        current = metadata.get("current-snapshot-id")
        snapshot = {
            "snapshot-id": number,
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": f"{metadata['location']}/metadata/snap-{number}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        if current in (None, -1):
            current = None
        else:
            snapshot["parent-snapshot-id"] = current
        return self.change(
            table,
            {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": current},
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": number,
            },
        )

    def version(self, number: int) -> dict[str, Any]:
        return view_version(number, self.namespace, number)

    def _rename(self, source: str, destination: str) -> dict[str, Any]:
        return {
            "source": self.identifier(source),
            "destination": self.identifier(destination),
        }

    # --- What the catalog has ----------------------------------------------------------------

    def load(self, table: str) -> dict[str, Any]:
        return dict(self.direct.done(Ask("GET", self.path("tables", table))))

    def tables(self) -> list[str]:
        return self._listed("tables")

    def views(self) -> list[str]:
        return self._listed("views")

    def snapshots(self, table: str) -> list[int]:
        return [one["snapshot-id"] for one in self.load(table)["metadata"].get("snapshots", [])]

    def state(self) -> dict[str, Any]:
        """All of it. Each change of a table or view gives it another metadata file."""
        below = self.direct.done(Ask("GET", f"namespaces?parent={self.namespace}"))
        return {
            "properties": self.direct.done(Ask("GET", self.path()))["properties"],
            "namespaces": sorted(levels[-1] for levels in below["namespaces"]),
            "tables": {name: self._file("tables", name) for name in self.tables()},
            "views": {name: self._file("views", name) for name in self.views()},
        }

    def _file(self, kind: str, name: str) -> str:
        return str(self.direct.done(Ask("GET", self.path(kind, name)))["metadata-location"])

    def _listed(self, kind: str) -> list[str]:
        found = self.direct.done(Ask("GET", self.path(kind)))
        return sorted(one["name"] for one in found["identifiers"])


def view_version(number: int, namespace: str, value: int) -> dict[str, Any]:
    return {
        "version-id": number,
        "schema-id": 0,
        "timestamp-ms": int(time.time() * 1000),
        "summary": {"engine-name": "test"},
        "default-namespace": [namespace],
        "representations": [{"type": "sql", "sql": f"select {value} as id", "dialect": "spark"}],
    }


def error_of(response: requests.Response) -> dict[str, Any]:
    """What an error says, which must be in Iceberg's form."""
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["message"]
    assert error["type"]
    return dict(error)
