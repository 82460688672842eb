"""A thousand changes over ways that break on both sides of the gateway: each is made once.

The ways break by a plan that follows from one number; CHAOS_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from moraine.catalog.adapter import IdempotentAdapter
from moraine.catalog.errors import (
    AlreadyExists,
    CatalogError,
    CommitFailed,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from moraine.catalog.iceberg import IcebergCatalog
from moraine.catalog.retries import RetryPolicy
from support.gateway import SCHEMA, Caller, new_key, running_gateway
from support.keyed_catalog import error
from support.relay import Answer, Forward, Relay, Request, Reset

OPERATIONS = 1000
WORKERS = 4
UNAVAILABLE = error(503, kind="ServiceUnavailableException")
# So that nothing is forgotten: the proof is in what a table and a view remember of themselves.
KEEP_ALL = {"write.metadata.previous-versions-max": "100000"}
KEEP_ALL_VERSIONS = {"version.history.num-entries": "100000"}

# How often out of a hundred; the rest passes.
MUTATIONS = {"lost": 12, "reset": 8, "503 after": 7, "503 before": 7, "twice": 0, "late": 5}
READS = {"reset": 3, "503 before": 5, "late": 3}


class Chaos(Relay):
    """What happens to a request follows from the seed, the request, and how often it was sent."""

    def __init__(self, upstream: str, seed: str, mutations: dict[str, int]) -> None:
        super().__init__(upstream)
        self._seed = seed
        self._mutations = mutations
        self._sent: Counter[Any] = Counter()
        self._lock = threading.Lock()
        self.raging = False
        self.happened: Counter[str] = Counter()
        self.changes: list[Request] = []
        """Those that the server behind has carried out."""

    def answer(self, request: Request, forward: Forward) -> Answer:
        mutates = request.method not in ("GET", "HEAD")
        what, chance = self._draw(request, self._mutations if mutates else READS)
        if what == "reset":
            raise Reset
        if what == "503 before":
            return UNAVAILABLE
        if what == "late":
            time.sleep(0.02 * chance)
        if what == "twice":
            twin = threading.Thread(target=self._again, args=[request])
            twin.start()
            answer = self._forward(request, forward, mutates)
            twin.join()
        else:
            answer = self._forward(request, forward, mutates)
        if what == "lost":
            raise Reset
        return UNAVAILABLE if what == "503 after" else answer

    def _forward(self, request: Request, forward: Forward, mutates: bool) -> Answer:
        answer = forward(request)
        if mutates and answer.status < 300:
            with self._lock:
                self.changes.append(request)
        return answer

    def _again(self, request: Request) -> None:
        with self.forwarding() as forward:
            forward(request)

    def _draw(self, request: Request, chances: dict[str, int]) -> tuple[str, float]:
        if not self.raging:
            return "", 0.0
        with self._lock:
            name = (request.method, request.target, request.body)
            self._sent[name] += 1
            dice = random.Random(f"{self._seed} {name} {self._sent[name]}")
            drawn = dice.uniform(0, 100)
            for what, chance in chances.items():
                drawn -= chance
                if drawn < 0:
                    self.happened[what] += 1
                    return what, dice.random()
        return "", 0.0


@dataclass
class Table:
    """What a table must be like in the end."""

    uuid: str
    properties: dict[str, str]
    commits: int = 0
    columns: int = 1
    snapshots: list[int] = field(default_factory=list)


@dataclass
class View:
    uuid: str
    versions: int = 1


class Worker:
    """Changes one namespace by chance, and keeps a model of what it must look like."""

    def __init__(self, number: int, seed: str, client: IcebergCatalog, folder: str) -> None:
        self.dice = random.Random(f"{seed} worker {number}")
        self.client = client
        self.namespace = f"chaos{folder}w{number}"
        self.properties: dict[str, str] = {}
        self.tables: dict[str, Table] = {}
        self.views: dict[str, View] = {}
        self.below: dict[str, dict[str, str]] = {}
        self.changes = 0
        self.refusals = 0
        self.steps = 0

    def run(self, steps: int) -> None:
        self.client.create_namespace(self.namespace)
        self.changes += 1
        acts = [
            *[self.create_table] * 3,
            *[self.set_properties] * 5,
            *[self.append] * 6,
            *[self.widen] * 3,
            *[self.rename_table] * 2,
            *[self.drop_table] * 2,
            *[self.transact] * 2,
            self.create_view,
            *[self.replace_view] * 2,
            self.rename_view,
            self.drop_view,
            self.create_namespace,
            *[self.update_namespace] * 2,
            self.drop_namespace,
            *[self.be_refused] * 4,
        ]
        while self.steps < steps:
            act = self.dice.choice(acts)
            try:
                act()
            except CatalogError as failure:
                doing = f"{self.namespace}, step {self.steps}, {act.__name__}"
                raise AssertionError(f"{doing}: {failure!r}") from failure

    def _done(self) -> None:
        self.steps += 1
        self.changes += 1

    def _new(self, kind: str) -> str:
        return f"{kind}{self.steps}"

    # --- Tables ------------------------------------------------------------------------------

    def create_table(self) -> None:
        name = self._new("t")
        properties = {**KEEP_ALL, "step": str(self.steps)}
        made = self.client.create_table(self.namespace, name, SCHEMA, properties=properties)
        self.tables[name] = Table(made.uuid, properties)
        self._done()

    def set_properties(self) -> None:
        if name := self._some(self.tables):
            self._commit(name, self._properties_of(self.tables[name]))

    def append(self) -> None:
        if name := self._some(self.tables):
            self._commit(name, self._snapshot_of(name))

    def widen(self) -> None:
        if name := self._some(self.tables):
            table = self.tables[name]
            number = table.columns + 1
            columns = [
                {"id": one, "name": "id" if one == 1 else f"c{one}", "type": "long"}
                | {"required": False}
                for one in range(1, number + 1)
            ]
            schema = {"type": "struct", "schema-id": number, "fields": columns}
            added = {"action": "add-schema", "schema": schema, "last-column-id": number}
            self._commit(name, [added, {"action": "set-current-schema", "schema-id": -1}])
            table.columns = number

    def rename_table(self) -> None:
        if name := self._some(self.tables):
            new = self._new("r")
            self.client.rename_table((self.namespace, name), (self.namespace, new))
            self.tables[new] = self.tables.pop(name)
            self._done()

    def drop_table(self) -> None:
        if len(self.tables) > 2 and (name := self._some(self.tables)):
            self.client.drop_table(self.namespace, name)
            del self.tables[name]
            self._done()

    def transact(self) -> None:
        if len(self.tables) < 2:
            return
        names = self.dice.sample(sorted(self.tables), 2)
        changes = []
        for name, updates in zip(
            names,
            [self._properties_of(self.tables[names[0]]), self._snapshot_of(names[1])],
            strict=True,
        ):
            identifier = {"namespace": [self.namespace], "name": name}
            requirements = self._requirements(self.tables[name], updates)
            changes.append(
                {"identifier": identifier, "requirements": requirements, "updates": updates}
            )
        self.client.commit_transaction(changes)
        for name, change in zip(names, changes, strict=True):
            self._note(self.tables[name], change["updates"])
        self._done()

    def _commit(self, name: str, updates: list[dict[str, Any]]) -> None:
        table = self.tables[name]
        requirements = self._requirements(table, updates)
        committed = self.client.commit_table(self.namespace, name, requirements, updates)
        assert committed.uuid == table.uuid
        self._note(table, updates)
        self._done()

    def _requirements(self, table: Table, updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
        required: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": table.uuid}]
        if any(update["action"] == "add-snapshot" for update in updates):
            current = table.snapshots[-1] if table.snapshots else None
            required.append(
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": current}
            )
        return required

    def _note(self, table: Table, updates: list[dict[str, Any]]) -> None:
        table.commits += 1
        for update in updates:
            table.properties.update(update.get("updates", {}))
            if update["action"] == "add-snapshot":
                table.snapshots.append(update["snapshot"]["snapshot-id"])

    def _properties_of(self, table: Table) -> list[dict[str, Any]]:
        return [{"action": "set-properties", "updates": {"step": str(self.steps)}}]

    def _snapshot_of(self, name: str) -> list[dict[str, Any]]:
        table = self.tables[name]
        number = self.dice.randrange(2**62, 2**63)
        snapshot = {
            "snapshot-id": number,
            "sequence-number": len(table.snapshots) + 1,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": f"file:/nowhere/snap-{number}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        if table.snapshots:
            snapshot["parent-snapshot-id"] = table.snapshots[-1]
        main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
        return [{"action": "add-snapshot", "snapshot": snapshot}, {**main, "snapshot-id": number}]

    # --- Views -------------------------------------------------------------------------------

    def create_view(self) -> None:
        name = self._new("v")
        made = self.client.create_view(
            self.namespace, name, SCHEMA, self._version(1), properties=KEEP_ALL_VERSIONS
        )
        self.views[name] = View(made.uuid)
        self._done()

    def replace_view(self) -> None:
        if name := self._some(self.views):
            view = self.views[name]
            updates = [
                {"action": "add-view-version", "view-version": self._version(view.versions + 1)},
                {"action": "set-current-view-version", "view-version-id": -1},
            ]
            required = [{"type": "assert-view-uuid", "uuid": view.uuid}]
            self.client.replace_view(self.namespace, name, required, updates)
            view.versions += 1
            self._done()

    def rename_view(self) -> None:
        if name := self._some(self.views):
            new = self._new("w")
            self.client.rename_view((self.namespace, name), (self.namespace, new))
            self.views[new] = self.views.pop(name)
            self._done()

    def drop_view(self) -> None:
        if name := self._some(self.views):
            self.client.drop_view(self.namespace, name)
            del self.views[name]
            self._done()

    def _version(self, number: int) -> dict[str, Any]:
        return {
            "version-id": number,
            "schema-id": 0,
            "timestamp-ms": int(time.time() * 1000),
            "summary": {"engine-name": "test"},
            "default-namespace": [self.namespace],
            "representations": [
                {"type": "sql", "sql": f"select {self.steps} as id", "dialect": "spark"}
            ],
        }

    # --- Namespaces --------------------------------------------------------------------------

    def create_namespace(self) -> None:
        name, properties = self._new("n"), {"step": str(self.steps)}
        self.client.create_namespace([self.namespace, name], properties)
        self.below[name] = properties
        self._done()

    def update_namespace(self) -> None:
        updates = {f"p{self.dice.randrange(4)}": str(self.steps)}
        gone = [name for name in self.properties if name not in updates][:1]
        change = self.client.update_namespace_properties(self.namespace, updates, gone)
        assert set(change.updated) == set(updates)
        assert set(change.removed) | set(change.missing) == set(gone)
        self.properties.update(updates)
        for name in gone:
            del self.properties[name]
        self._done()

    def drop_namespace(self) -> None:
        if name := self._some(self.below):
            self.client.drop_namespace([self.namespace, name])
            del self.below[name]
            self._done()

    # --- What must fail ----------------------------------------------------------------------

    def be_refused(self) -> None:
        """Whatever gets lost on the way: what is refused stays refused."""
        kind = self.dice.randrange(7)
        table, view = self._some(self.tables), self._some(self.views)
        missing = f"missing{self.steps}"
        if kind == 0 and table:
            made = {**KEEP_ALL, "step": self.tables[table].properties["step"]}
            with pytest.raises(AlreadyExists):
                self.client.create_table(self.namespace, table, SCHEMA, properties=made)
        elif kind == 1:
            with pytest.raises(NoSuchTable):
                self.client.drop_table(self.namespace, missing)
        elif kind == 2 and table:
            stale = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}]
            with pytest.raises(CommitFailed):
                self.client.commit_table(
                    self.namespace, table, stale, self._properties_of(self.tables[table])
                )
        elif kind == 3 and table:
            with pytest.raises(NoSuchTable):
                self.client.rename_table((self.namespace, missing), (self.namespace, "x"))
        elif kind == 4 and view:
            with pytest.raises(AlreadyExists):
                self.client.create_view(self.namespace, view, SCHEMA, self._version(1))
        elif kind == 5:
            with pytest.raises((NoSuchNamespace, NoSuchView)):
                self.client.drop_view(self.namespace, missing)
        elif kind == 6 and (table or self.below):
            with pytest.raises(NamespaceNotEmpty):
                self.client.drop_namespace(self.namespace)
        else:
            return
        self.steps += 1
        self.refusals += 1

    def _some(self, things: dict[str, Any]) -> str | None:
        return self.dice.choice(sorted(things)) if things else None

    # --- The proof ---------------------------------------------------------------------------

    def check(self, direct: Caller) -> None:
        """The catalog, asked itself, has what the model has, and was changed no more often."""
        path = f"namespaces/{self.namespace}"

        def load(below: str) -> Any:
            response = direct.get(f"{path}{below}", headers={"Accept-Encoding": "identity"})
            assert response.status_code == 200, response.text
            return response.json()

        found = load("")["properties"]
        assert {k: v for k, v in found.items() if k != "location"} == self.properties
        names = [one["name"] for one in load("/tables")["identifiers"]]
        assert sorted(names) == sorted(self.tables)
        for name, table in self.tables.items():
            metadata = load(f"/tables/{name}")["metadata"]
            assert metadata["table-uuid"] == table.uuid
            assert len(metadata["metadata-log"]) == table.commits, (name, table)
            assert metadata["properties"].items() >= table.properties.items(), (name, table)
            ids = [one["snapshot-id"] for one in metadata.get("snapshots", [])]
            assert sorted(ids) == sorted(table.snapshots), (name, table)
            assert metadata["last-column-id"] == table.columns, (name, table)
            assert len(metadata["schemas"]) == table.columns, (name, table)
        names = [one["name"] for one in load("/views")["identifiers"]]
        assert sorted(names) == sorted(self.views)
        for name, view in self.views.items():
            metadata = load(f"/views/{name}")["metadata"]
            assert metadata["view-uuid"] == view.uuid
            assert len(metadata["versions"]) == view.versions, (name, view)
            assert len(metadata["version-log"]) == view.versions, (name, view)
        listed = direct.get(f"namespaces?parent={self.namespace}").json()["namespaces"]
        assert sorted(levels[-1] for levels in listed) == sorted(self.below)
        for name, properties in self.below.items():
            assert load(f"%2E{name}")["properties"].items() >= properties.items()


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
    policy = RetryPolicy(most_attempts=100, first_delay=0.002, longest_delay=0.02)
    with ExitStack() as stack:
        workers = []
        for number in range(WORKERS):
            adapter = IdempotentAdapter(
                uri=url, policy=policy, sleep=lambda delay: time.sleep(min(delay, 0.05))
            )
            client = IcebergCatalog(url, adapter=adapter, timeout=(5, 60))
            stack.callback(client.close)
            assert client.server_config.key_lifetime
            workers.append(Worker(number, seed, client, realm.rpartition("-")[2]))
        before.raging = behind.raging = True
        with ThreadPoolExecutor(WORKERS) as pool:
            for _ in pool.map(lambda worker: worker.run(OPERATIONS // WORKERS), workers):
                pass
        before.raging = behind.raging = False

    for worker in workers:
        worker.check(direct)
    # No change was made at the catalog that nobody knows of, and none twice.
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
