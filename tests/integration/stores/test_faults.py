"""A store that throttles, breaks connections and refuses: what a Storage makes of it."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.storage.credentials import Credentials
from moraine.storage.stores import (
    DELETED,
    UNSENT,
    Failure,
    Outcome,
    Storage,
    StorageLimits,
)

RESET = "reset"
HANG = "hang"


@dataclass
class Request:
    method: str
    path: str
    keys: list[str]
    token: str | None
    at: float = field(default_factory=time.monotonic)


# What a fault makes of a request: a status with a code, codes by key, a broken connection, or
# nothing, and the request is answered as it should be.
Fault = Callable[[Request], "tuple[int, str] | dict[str, str] | str | None"]


class Store:
    """As much of S3 as is needed, with a fault before it."""

    def __init__(self) -> None:
        self.objects: set[str] = set()
        self.requests: list[Request] = []
        self.fault: Fault = lambda request: None
        self.running = 0
        self.max_running = 0
        self._lock = threading.Lock()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                return

            def answer(self) -> None:
                store._answer(self)

            do_GET = do_HEAD = do_POST = do_DELETE = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def _answer(self, call: BaseHTTPRequestHandler) -> None:
        body = call.rfile.read(int(call.headers.get("content-length") or 0)).decode()
        keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", body, re.S)]
        key = unquote(call.path.partition("/b/")[2])
        request = Request(
            call.command, call.path, keys or [key], call.headers.get("x-amz-security-token")
        )
        with self._lock:
            self.requests.append(request)
            self.running += 1
            self.max_running = max(self.max_running, self.running)
        try:
            fault = self.fault(request)
        finally:
            with self._lock:
                self.running -= 1
        if fault in (RESET, HANG):
            call.close_connection = True
            if fault == RESET:
                now = struct.pack("ii", 1, 0)
                call.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
                call.connection.close()
            else:
                time.sleep(1)
            return
        if isinstance(fault, tuple):
            self._send(call, fault[0], f"<Error><Code>{fault[1]}</Code></Error>")
        elif keys:
            refused = fault if isinstance(fault, dict) else {}
            self.objects -= set(keys) - set(refused)
            lines = [
                f"<Error><Key>{k}</Key><Code>{refused[k]}</Code><Message>no</Message></Error>"
                if k in refused
                else f"<Deleted><Key>{k}</Key></Deleted>"
                for k in keys
            ]
            self._send(call, 200, f"<DeleteResult>{''.join(lines)}</DeleteResult>")
        elif call.command == "DELETE":
            self.objects.discard(key)
            self._send(call, 204, "")
        else:
            self._send(call, 200 if key in self.objects else 404, "x")

    def _send(self, call: BaseHTTPRequestHandler, status: int, body: str) -> None:
        content = body.encode()
        call.send_response(status)
        call.send_header("content-length", str(len(content)))
        call.send_header("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        call.end_headers()
        if call.command != "HEAD":
            call.wfile.write(content)

    def config(self, token: str = "token") -> dict[str, str]:
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.server.server_port}",
            "s3.access-key-id": "id",
            "s3.secret-access-key": "hush",
            "s3.session-token": token,
            "client.region": "us-east-1",
        }

    def fill(self, count: int) -> list[str]:
        keys = [f"t/data/{number}" for number in range(count)]
        self.objects = set(keys)
        return [f"s3://b/{key}" for key in keys]


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.server.shutdown()
    store.server.server_close()


def open_storage(
    store: Store, renew: Callable[[], Credentials] | None = None, **limits: Any
) -> Storage:
    quick = {"batch_size": 10, "patience": 1.0, "request_timeout": 0.4, "retries": 2}
    return Storage(Credentials(store.config()), renew, limits=StorageLimits(**(quick | limits)))


def first(count: int, fault: Any) -> Fault:
    """A fault that only the first requests meet."""
    left = iter(range(count))
    return lambda request: fault if next(left, None) is not None else None


@pytest.mark.parametrize(
    "fault", [(503, "SlowDown"), (429, "TooMany"), (500, "InternalError"), RESET]
)
def test_store_delete_retries_transient_errors(store: Store, fault: Any) -> None:
    paths = store.fill(40)
    store.fault = first(2, fault)
    assert open_storage(store).delete(paths) == [DELETED] * 40
    assert store.objects == set()
    assert len(store.requests) == 6


def test_store_delete_retries_a_timeout(store: Store) -> None:
    paths = store.fill(10)
    store.fault = first(1, HANG)
    assert open_storage(store).delete(paths) == [DELETED] * 10


def test_store_throttling_reduces_the_concurrency_until_it_ends(store: Store) -> None:
    paths = store.fill(200)

    def overloaded(request: Request) -> tuple[int, str] | None:
        time.sleep(0.02)
        return (503, "SlowDown") if store.running > 1 else None

    store.fault = overloaded
    outcomes = open_storage(store, concurrency=8, patience=20).delete(paths)
    assert outcomes == [DELETED] * 200
    throttled = len(store.requests) - 20
    assert throttled < 40, "the sender slows down"


def test_store_throttling_without_end_is_no_refusal(store: Store) -> None:
    paths = store.fill(20)
    store.fault = lambda request: (503, "SlowDown")
    started = time.monotonic()
    outcomes = open_storage(store).delete(paths)
    assert outcomes == [Failure("HTTP 503 SlowDown", refused=False)] * 20
    assert time.monotonic() - started > 1


def test_store_that_is_broken_is_given_up_after_some_tries(store: Store) -> None:
    paths = store.fill(10)
    store.fault = lambda request: RESET
    outcomes = open_storage(store).delete(paths)
    assert outcomes == [Failure("the connection broke", refused=False)] * 10
    assert len(store.requests) == 3


def test_store_delete_gives_each_key_its_own_outcome(store: Store) -> None:
    paths = store.fill(30)
    refused = {"t/data/3", "t/data/12", "t/data/13"}
    store.fault = lambda request: dict.fromkeys(refused & set(request.keys), "AccessDenied")
    reported: dict[int, Outcome] = {}

    outcomes = open_storage(store).delete(
        paths, on_batch=lambda at, found: reported.update(zip(at, found, strict=True))
    )

    expected = [
        Failure("AccessDenied", True) if path.removeprefix("s3://b/") in refused else DELETED
        for path in paths
    ]
    assert outcomes == expected
    assert [reported[at] for at in range(30)] == expected
    assert store.objects == refused


def test_store_delete_of_an_invalid_key_spoils_no_other(store: Store) -> None:
    paths = store.fill(20)
    store.fault = lambda request: dict.fromkeys({"t/data/7"} & set(request.keys), "InternalError")
    outcomes = open_storage(store).delete(paths)
    assert outcomes.pop(7) == Failure("InternalError", refused=False)
    assert outcomes == [DELETED] * 19


def test_store_delete_in_a_missing_bucket_is_no_success(store: Store) -> None:
    store.fault = lambda request: (404, "NoSuchBucket")
    outcomes = open_storage(store).delete(store.fill(3))
    assert outcomes == [Failure("HTTP 404 NoSuchBucket", refused=True)] * 3
    assert len(store.requests) == 1, "no key of it would fare better"


def test_store_delete_sends_a_name_with_an_empty_part_as_it_is(store: Store) -> None:
    store.objects = {"t//data/a b", "t/data/a b", "/t", "t"}
    assert open_storage(store).delete(["s3://b/t//data/a b", "s3a://b//t"]) == [DELETED] * 2
    assert store.objects == {"t/data/a b", "t"}


def test_store_delete_refuses_a_name_that_would_be_another_object(store: Store) -> None:
    outcomes = open_storage(store).delete(["s3://b/t/../u", "s3://b/t/"])
    assert all(isinstance(outcome, Failure) and outcome.refused for outcome in outcomes)
    assert store.requests == []
    with pytest.raises(StorageRefused):
        open_storage(store).size("s3://b/t/../u")


def test_store_delete_sends_nothing_without_a_permit(store: Store) -> None:
    paths = store.fill(100)
    asked = []

    def permit() -> bool:
        asked.append(len(store.requests))
        return len(asked) <= 3

    reported: list[int] = []
    outcomes = open_storage(store, concurrency=2).delete(
        paths, permit=permit, on_batch=lambda at, _: reported.extend(at)
    )
    assert len(store.requests) == 3
    assert len(asked) == 4, "and never again after a no"
    assert outcomes.count(DELETED) == 30
    assert outcomes.count(UNSENT) == 70
    assert sorted(reported) == [at for at, outcome in enumerate(outcomes) if outcome == DELETED]


def test_store_delete_asks_for_a_permit_before_a_retry_too(store: Store) -> None:
    paths = store.fill(10)
    store.fault = lambda request: RESET
    answers = iter([True, False])
    outcomes = open_storage(store).delete(paths, permit=lambda: next(answers))
    assert len(store.requests) == 1
    assert outcomes == [Failure("the connection broke", refused=False)] * 10, (
        "the outcome is unknown"
    )


def test_store_delete_stops_waiting_when_the_permit_ends(store: Store) -> None:
    paths = store.fill(10)
    store.fault = lambda request: (503, "SlowDown")
    end = time.monotonic() + 1.5
    patient = open_storage(store, patience=3600)
    assert patient.delete(paths, permit=lambda: time.monotonic() < end) == [UNSENT] * 10


def test_store_delete_stops_sending_after_an_error_of_the_caller(store: Store) -> None:
    paths = store.fill(200)

    def fail(*_: Any) -> bool:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        open_storage(store, concurrency=2).delete(paths, on_batch=fail)
    assert len(store.requests) < 10
    sent = len(store.requests)
    with pytest.raises(KeyError, match="lost"):
        open_storage(store).delete(paths, permit=fail)
    assert len(store.requests) == sent


def test_store_delete_reports_batches_from_one_thread(store: Store) -> None:
    threads = set()
    open_storage(store).delete(
        store.fill(100), on_batch=lambda *_: threads.add(threading.get_ident())
    )
    assert threads == {threading.get_ident()}


def test_store_credentials_that_are_refused_are_renewed_once_for_all_batches(store: Store) -> None:
    paths = store.fill(100)
    store.fault = lambda request: None if request.token == "new" else (400, "ExpiredToken")
    renewals = []

    def renew() -> Credentials:
        renewals.append(time.monotonic())
        return Credentials(store.config("new"))

    assert open_storage(store, renew).delete(paths) == [DELETED] * 100
    assert len(renewals) == 1


def test_store_credentials_that_stay_refused_are_not_renewed_for_ever(store: Store) -> None:
    paths = store.fill(10)
    store.fault = lambda request: (403, "InvalidAccessKeyId")
    renew = lambda: Credentials(store.config("new"))  # noqa: E731
    outcomes = open_storage(store, renew).delete(paths)
    assert outcomes == [Failure("HTTP 403 InvalidAccessKeyId", refused=True)] * 10
    assert len(store.requests) == 2


def test_store_credentials_renewal_that_fails_when_needed_is_raised(store: Store) -> None:
    store.fault = lambda request: (400, "ExpiredToken")

    def renew() -> Credentials:
        raise ConnectionError("no catalog")

    with pytest.raises(ConnectionError, match="no catalog"):
        open_storage(store, renew).delete(store.fill(50))


def test_store_read_says_why_it_failed_and_no_secret(store: Store) -> None:
    storage = open_storage(store, retries=0)
    store.fault = lambda request: (403, "AccessDenied")
    with pytest.raises(StorageRefused, match="s3://b/t/x could not be read: HTTP 403") as refused:
        storage.read("s3://b/t/x")
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    store.fault = lambda request: RESET
    with pytest.raises(StorageUnavailable, match="s3://b/t/x could not be read"):
        storage.size("s3://b/t/x")
    with pytest.raises(StorageUnavailable):
        storage.remaining(["s3://b/t/x"])


def test_store_remaining_examines_files_concurrently_if_it_cannot_list(store: Store) -> None:
    paths = store.fill(60)
    store.objects -= {"t/data/5", "t/data/50"}

    def slow(request: Request) -> tuple[int, str] | None:
        time.sleep(0.05)
        return (403, "AccessDenied") if "list-type" in request.path else None

    store.fault = slow
    remaining = open_storage(store).remaining(paths)
    assert remaining == [path for path in paths if path[14:] not in ("5", "50")]
    assert store.max_running > 8


def test_store_remaining_counts_unexamined_files_as_existing(store: Store) -> None:
    paths = store.fill(5)
    store.objects.clear()
    assert open_storage(store).remaining(paths, lambda: False) == paths
    assert open_storage(store).remaining(paths) == []


FORK = """
import os, sys
from moraine.errors import StorageUnavailable
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage
storage = Storage(Credentials({"s3.endpoint": sys.argv[1], "s3.anonymous": "true"}))
storage.size("s3://b/t")
child = os.fork()
if child == 0:
    try:
        storage.size("s3://b/t")
    except StorageUnavailable:
        os._exit(7)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_store_client_in_a_forked_process_gets_an_error_and_does_not_hang(store: Store) -> None:
    command = [sys.executable, "-c", FORK, store.config()["s3.endpoint"]]
    assert subprocess.run(command, timeout=30, check=False).returncode == 7
