"""A catalog that honours idempotency keys, as far as it is told to, and breaks when it is told to.

It answers by itself, or lets a real catalog behind it do that.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from support.relay import NOWHERE, Answer, Forward, Relay, Request, Reset

KEY = "Idempotency-Key"
JSON = ("Content-Type", "application/json")
METADATA = {"metadata-location": "file:/t/2.json", "metadata": {"location": "file:/t"}}

Execute = Callable[[], Answer]
Fault = Callable[[Execute], Answer]
"""What happens to one mutation instead of its being executed and answered."""


class KeyedCatalog(Relay):
    def __init__(self, *, lifetime: str | None = "PT30M", upstream: str = NOWHERE) -> None:
        super().__init__(upstream)
        self.config: dict[str, Any] = {"defaults": {}, "overrides": {}}
        if lifetime is not None:
            self.config["idempotency-key-lifetime"] = lifetime
        self.faults: deque[Fault] = deque()
        self.seen: list[Request] = []
        self.executed: list[Request] = []
        self._results: dict[str, tuple[bytes, Answer]] = {}
        self._lock = threading.Lock()

    def break_with(self, *faults: Fault) -> None:
        """For the next mutations, one each."""
        self.faults.extend(faults)

    @property
    def mutations(self) -> list[Request]:
        return [request for request in self.seen if request.method not in ("GET", "HEAD")]

    @property
    def keys(self) -> list[str]:
        """Of each mutation that arrived; empty if it had none."""
        return [request.header(KEY) for request in self.mutations]

    @property
    def configs_asked_for(self) -> list[Request]:
        return [request for request in self.seen if request.path.endswith("/v1/config")]

    def answer(self, request: Request, forward: Forward) -> Answer:
        self.seen.append(request)
        if request.path.endswith("/v1/config"):
            return self.configuration(request, forward)
        if request.method in ("GET", "HEAD"):
            return self.read(request, forward)
        fault = self.faults.popleft() if self.faults else None

        def execute() -> Answer:
            return self._execute_once(request, forward)

        return fault(execute) if fault else execute()

    def read(self, request: Request, forward: Forward) -> Answer:
        if self.has_upstream:
            return forward(request)
        return as_json(200, METADATA)

    @property
    def has_upstream(self) -> bool:
        return self._upstream.geturl() != NOWHERE

    def configuration(self, request: Request, forward: Forward) -> Answer:
        plain = request.without("Accept-Encoding")
        given = json.loads(forward(plain).body) if self.has_upstream else {}
        return as_json(200, {**given, **self.config})

    def _execute_once(self, request: Request, forward: Forward) -> Answer:
        key = request.header(KEY)
        with self._lock:
            if key and key in self._results:
                body, answer = self._results[key]
                if body != request.body:
                    return error(422, "idempotency_key_conflict")
                return replace(answer, headers=(*answer.headers, ("Idempotency-Replayed", "true")))
            self.executed.append(request)
            answer = forward(request) if self.has_upstream else _canned(request)
            if key:
                self._results[key] = request.body, answer
            return answer


def _canned(request: Request) -> Answer:
    if request.method == "DELETE" or request.path.endswith(("/rename", "/commit")):
        return Answer(204, headers=())
    return as_json(200, METADATA)


def as_json(status: int, body: Any, headers: Iterable[tuple[str, str]] = ()) -> Answer:
    return Answer(status, json.dumps(body).encode(), (JSON, *headers))


def error(status: int, subtype: str = "", kind: str = "", retry_after: str = "") -> Answer:
    model = {"message": "no such luck", "type": kind or "SomeException", "code": status}
    if subtype:
        model["subtype"] = subtype
    headers = [("Retry-After", retry_after)] if retry_after else []
    return as_json(status, {"error": model}, headers)


UNAVAILABLE = error(503, kind="CommitStateUnknownException")


# --- Faults ---------------------------------------------------------------------------------


def reset_before(execute: Execute) -> Answer:
    raise Reset


def reset_after(execute: Execute) -> Answer:
    execute()
    raise Reset


def half_an_answer(execute: Execute) -> Answer:
    """The status says success, and the body cannot be read to its end."""
    answer = execute()
    return Answer(
        answer.status, b"1\r\n{\r\nno chunk\r\n", (JSON, ("Transfer-Encoding", "chunked"))
    )


def answers(given: Answer, *, executed: bool = False) -> Fault:
    def fault(execute: Execute) -> Answer:
        if executed:
            execute()
        return given

    return fault


def silent_after(until: threading.Event) -> Fault:
    """Executes, and says nothing for as long as a client could wait."""

    def fault(execute: Execute) -> Answer:
        answer = execute()
        until.wait(30)
        return answer

    return fault


class Held:
    """A mutation that stands still at the catalog until it is let go."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, execute: Execute) -> Answer:
        self.arrived.set()
        assert self.go_on.wait(120)
        return execute()


def in_progress(retry_after: str = "", status: int = 409) -> Fault:
    return answers(error(status, "request_in_progress", retry_after=retry_after))
