"""A thousand changes over ways that break on both sides of the gateway: each is made once.

The ways break by a plan that follows from one number; CHAOS_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
import requests
from psycopg.rows import dict_row

from moraine.client.adapter import IdempotentAdapter
from moraine.client.retries import HttpRetryPolicy
from moraine.iceberg.config import read_lifetime
from support.chaos import MUTATIONS, Chaos
from support.chaos_worker import Worker
from support.gateway import Caller, new_key, running_gateway
from support.relay import Request

OPERATIONS = 1000
WORKERS = 4


@pytest.fixture
def seed() -> str:
    given = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"CHAOS_SEED={given}")  # pytest shows it if the test fails
    return given


@pytest.fixture
def realm() -> str:
    return new_key()


@pytest.fixture
def behind(direct: Caller, seed: str) -> Iterator[Chaos]:
    with Chaos(direct.url, f"{seed} behind", MUTATIONS) as relay:
        yield relay


@pytest.fixture
def before(ledger: str, behind: Chaos, seed: str, realm: str) -> Iterator[Chaos]:
    """And it sends requests twice, at the same time."""
    catalogs = {"prod": behind.url}
    with running_gateway(ledger, catalogs, realm=realm) as base:
        origin, _, path = base.rpartition("/")
        assert path == "catalog"
        with Chaos(origin, f"{seed} before", {**MUTATIONS, "twice": 6}) as relay:
            yield relay


def test_a_thousand_changes_each_made_once(
    direct: Caller, behind: Chaos, before: Chaos, ledger: str, seed: str, realm: str
) -> None:
    url = f"{before.url}/catalog"
    policy = HttpRetryPolicy(max_attempts=100, initial_delay=0.002, max_delay=0.02)
    with ExitStack() as stack:
        workers = []
        for number in range(WORKERS):
            adapter = IdempotentAdapter(
                uri=url, policy=policy, sleep=lambda delay: time.sleep(min(delay, 0.05))
            )
            session = stack.enter_context(requests.Session())
            session.mount(url, adapter)
            caller = Caller(url, session=session)
            assert read_lifetime(caller.get("config").json())
            workers.append(Worker(number, seed, caller, realm.rpartition("-")[2]))
        before.raging = behind.raging = True
        with ThreadPoolExecutor(WORKERS) as pool:
            for _ in pool.map(lambda worker: worker.run(OPERATIONS // WORKERS), workers):
                pass
        before.raging = behind.raging = False

    for worker in workers:
        worker.check(direct)
    # The catalog made no change that no worker knows of, and none twice.
    made, refused = (sum(getattr(w, what) for w in workers) for what in ("changes", "refusals"))
    assert made + refused >= OPERATIONS
    assert len(behind.changes) == made
    assert max(Counter(_identity(request) for request in behind.changes).values()) == 1
    # One key for each, and each has its outcome.
    with psycopg.connect(ledger, row_factory=dict_row) as connection:
        rows = connection.execute(
            "SELECT http_status, attempts FROM idempotency_records WHERE realm_id = %s", [realm]
        ).fetchall()
    assert len(rows) == made + refused
    assert sum(200 <= (row["http_status"] or 0) < 300 for row in rows) == made
    assert all(row["http_status"] for row in rows)
    # And it was not easy.
    for relay in (before, behind):
        for what in ("lost", "reset", "503 after", "503 before"):
            assert relay.happened[what] > OPERATIONS / 50, (relay.happened, what)
    assert before.happened["twice"] > OPERATIONS / 50
    assert sum(row["attempts"] > 1 for row in rows) > OPERATIONS / 10


def _identity(request: Request) -> str:
    return json.dumps([request.method, request.target, request.body.decode()])
