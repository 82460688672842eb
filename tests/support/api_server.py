"""The real app on a real uvicorn, as callers meet it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import requests
import uvicorn

from moraine.app.assembly import create_standalone_app
from moraine.errors import MoraineError
from moraine.http import DELEGATION_PATH
from moraine.http.server import server_options
from moraine.settings import Settings
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from support.tasks import claim_due
from support.waiting import wait_for

SYNC = "/v1/tasks/execute/synchronous"


class Api:
    """A caller of the API, with a token unless a call brings its own headers."""

    def __init__(self, origin: str, token: str) -> None:
        self.origin = origin
        self.url = f"{origin}{DELEGATION_PATH}"
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {**self._headers, **options.pop("headers", {})}
        return requests.request(
            method,
            f"{self.url}{path}",
            headers={name: value for name, value in headers.items() if value is not None},
            **{"timeout": 30, **options},
        )

    def submit(self, table: str = "orders", **properties: str) -> str:
        response = self.post("/v1/tasks", json=purge(table, **properties))
        assert response.status_code == 202, response.text
        return str(response.json()["delegation_task_id"])

    def task(self, task_id: str) -> dict[str, Any]:
        response = self.get(f"/v1/tasks/{task_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def events(self, task_id: str, last_event_id: int | None = None) -> EventStream:
        headers = {"Last-Event-ID": str(last_event_id)} if last_event_id is not None else {}
        response = self.get(f"/v1/tasks/{task_id}/events", stream=True, headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return EventStream(response)


class EventStream:
    """Server-sent events as a browser would read them."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        fields: dict[str, str] = {}
        for line in self._response.iter_lines(chunk_size=1, decode_unicode=True):
            if line:
                name, _, value = line.partition(": ")
                fields[name] = fields.get(name, "") + value
            elif "event" in fields:
                yield fields["event"], json.loads(fields["data"]), fields.get("id")
                fields = {}

    def close(self) -> None:
        self._response.close()


def purge(table: str = "orders", **properties: str) -> dict[str, Any]:
    """A request to purge demo.shop.TABLE."""
    return {
        "common_payload": {"operation_type": "TABLE_PURGE", "realm_identifier": "demo"},
        "operation_parameters": {
            "table_identity": {
                "catalog_name": "demo",
                "namespace_levels": ["shop"],
                "table_name": table,
            },
            "properties": properties,
        },
    }


@contextmanager
def running_api(settings: Settings) -> Iterator[str]:
    """The app's origin, while it runs."""
    server = uvicorn.Server(
        uvicorn.Config(
            create_standalone_app(settings),
            host="127.0.0.1",
            port=0,
            timeout_graceful_shutdown=1,
            **server_options(settings.api),
        )
    )
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        scheme = "https" if settings.api.tls.enabled else "http"
        yield f"{scheme}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


class Hand:
    """A worker in the test's hand: drives tasks of the ledger to any outcome."""

    def __init__(self, store: TaskStore, settings: Settings) -> None:
        self.store = store
        self._settings = settings

    def worker(self, owner: str = "test-worker") -> Worker:
        return Worker(self.store, self._settings, owner)

    def running(self, task_id: str | UUID, owner: str = "test-worker") -> Claim:
        """Claim a task and begin the work."""
        task = self.store.claim_one(UUID(str(task_id)), owner)
        assert task is not None
        return self.store.start(Claim(task.task_id, task.version, owner))

    def progress(self, claim: Claim, **progress: Any) -> None:
        self.store.heartbeat(claim, progress)

    def succeed(self, claim: Claim, files: int = 42, size: int = 123456) -> Task:
        result = {"files_deleted": files, "bytes_deleted": size}
        return self.worker(claim.owner).succeed(claim, f"{files} files deleted.", result)

    def fail(self, claim: Claim, error: Exception) -> Task:
        return self.worker(claim.owner).fail(claim, self.store.get(claim.task_id), error)

    def retry_at(self, claim: Claim, at: datetime) -> Task:
        return self.store.advance(
            claim,
            Status.RETRY_SCHEDULED,
            "attempt failed",
            next_run=at,
            error_code="STORAGE_UNAVAILABLE",
            summary="The storage did not answer.",
        )

    def await_task(self, table: str) -> Task:
        """The live task about demo.shop.TABLE, once there is one."""
        found: list[Task] = []

        def look() -> bool:
            found[:] = [t for t in self.store.due(1000) if t.subject == f"demo.shop.{table}"]
            return bool(found)

        wait_for(look)
        return found[0]

    def finish(self, task: Task, outcome: MoraineError | Exception | None = None) -> None:
        claim = self.running(task.task_id)
        if outcome is None:
            self.succeed(claim)
        else:
            self.fail(claim, outcome)


@contextmanager
def finishing_everything(hand: Hand) -> Iterator[None]:
    """A worker that takes every task and succeeds at once."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.01):
            for task in claim_due(hand.store, "eager"):
                claim = Claim(task.task_id, task.version, "eager")
                hand.succeed(hand.store.start(claim))

    thread = threading.Thread(target=work, name="eager-worker")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def now() -> datetime:
    return datetime.now(UTC)
