"""Changes a namespace of a catalog at random, and knows what it must look like."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

import requests

from support.gateway import Ask, Caller, Scene

# So that nothing is forgotten: the proof is in what a table and a view remember of themselves.
KEEP_ALL = {"write.metadata.previous-versions-max": "100000"}
TIMEOUT = (5, 60)
KEEP_ALL_VERSIONS = {"version.history.num-entries": "100000"}


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
    """Changes one namespace at random, and keeps a model of what it must look like."""

    scene: Scene

    def __init__(self, number: int, seed: str, caller: Caller, folder: str) -> None:
        """`caller` retries, and has keys."""
        self.dice = random.Random(f"{seed} worker {number}")
        self.caller = caller
        self.namespace = f"chaos{folder}w{number}"
        self.properties: dict[str, str] = {}
        self.tables: dict[str, Table] = {}
        self.views: dict[str, View] = {}
        self.below: dict[str, dict[str, str]] = {}
        self.changes = 0
        self.refusals = 0
        self.steps = 0

    def run(self, steps: int) -> None:
        self.scene = Scene(self.caller, self.namespace)
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
            except (AssertionError, requests.RequestException) as failure:
                doing = f"{self.namespace}, step {self.steps}, {act.__name__}"
                raise AssertionError(f"{doing}: {failure!r}") from failure

    def _do(self, ask: Ask) -> Any:
        answer = self.caller.done(ask, timeout=TIMEOUT)
        self.steps += 1
        self.changes += 1
        return answer

    def _new(self, kind: str) -> str:
        return f"{kind}{self.steps}"

    # --- Tables ------------------------------------------------------------------------------

    def create_table(self) -> None:
        name = self._new("t")
        properties = {**KEEP_ALL, "step": str(self.steps)}
        made = self._do(self.scene.create_table(name, properties=properties))
        self.tables[name] = Table(made["metadata"]["table-uuid"], properties)

    def set_properties(self) -> None:
        if name := self._some(self.tables):
            self._commit(name, self._properties())

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
            self._do(self.scene.rename_table(name, new))
            self.tables[new] = self.tables.pop(name)

    def drop_table(self) -> None:
        if len(self.tables) > 2 and (name := self._some(self.tables)):
            self._do(self.scene.drop_table(name))
            del self.tables[name]

    def transact(self) -> None:
        if len(self.tables) < 2:
            return
        names = self.dice.sample(sorted(self.tables), 2)
        updates = [self._properties(), self._snapshot_of(names[1])]
        changed = [(self.tables[name], made) for name, made in zip(names, updates, strict=True)]
        self._do(
            self.scene.transaction(
                *(
                    self.scene.change(name, *self._requirements(table, made), *made)
                    for name, (table, made) in zip(names, changed, strict=True)
                )
            )
        )
        for table, made in changed:
            self._note(table, made)

    def _commit(self, name: str, updates: list[dict[str, Any]]) -> None:
        table = self.tables[name]
        parts = [*self._requirements(table, updates), *updates]
        committed = self._do(self.scene.commit(name, *parts))
        assert committed["metadata"]["table-uuid"] == table.uuid
        self._note(table, updates)

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

    def _properties(self) -> list[dict[str, Any]]:
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
        made = self._do(self.scene.create_view(name, **KEEP_ALL_VERSIONS))
        self.views[name] = View(made["metadata"]["view-uuid"])

    def replace_view(self) -> None:
        if name := self._some(self.views):
            view = self.views[name]
            required = {"type": "assert-view-uuid", "uuid": view.uuid}
            self._do(self.scene.replace_view(name, view.versions + 1, required))
            view.versions += 1

    def rename_view(self) -> None:
        if name := self._some(self.views):
            new = self._new("w")
            self._do(self.scene.rename_view(name, new))
            self.views[new] = self.views.pop(name)

    def drop_view(self) -> None:
        if name := self._some(self.views):
            self._do(self.scene.drop_view(name))
            del self.views[name]

    # --- Namespaces --------------------------------------------------------------------------

    def create_namespace(self) -> None:
        name, properties = self._new("n"), {"step": str(self.steps)}
        self._do(self.scene.create_namespace(name, **properties))
        self.below[name] = properties

    def update_namespace(self) -> None:
        updates = {f"p{self.dice.randrange(4)}": str(self.steps)}
        gone = [name for name in self.properties if name not in updates][:1]
        change = self._do(self.scene.update_namespace(gone, **updates))
        assert set(change["updated"]) == set(updates)
        assert {*change["removed"], *(change.get("missing") or ())} == set(gone)
        self.properties.update(updates)
        for name in gone:
            del self.properties[name]

    def drop_namespace(self) -> None:
        if name := self._some(self.below):
            self._do(self.scene.drop_namespace(name))
            del self.below[name]

    # --- What must fail ----------------------------------------------------------------------

    def be_refused(self) -> None:
        """Whatever gets lost on the way: what is refused stays refused."""
        scene, missing = self.scene, f"missing{self.steps}"
        kind = self.dice.randrange(7)
        table, view = self._some(self.tables), self._some(self.views)
        if kind == 0 and table:
            made = {**KEEP_ALL, "step": self.tables[table].properties["step"]}
            self._expect("AlreadyExists", scene.create_table(table, properties=made))
        elif kind == 1:
            self._expect("NoSuchTable", scene.drop_table(missing))
        elif kind == 2 and table:
            stale = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
            self._expect("CommitFailed", scene.commit(table, stale, *self._properties()))
        elif kind == 3 and table:
            self._expect("NoSuchTable", scene.rename_table(missing, "x"))
        elif kind == 4 and view:
            self._expect("AlreadyExists", scene.create_view(view))
        elif kind == 5:
            self._expect("NoSuchView", scene.drop_view(missing))
        elif kind == 6 and (table or self.below):
            self._expect("NamespaceNotEmpty", Ask("DELETE", scene.path()))

    def _expect(self, refusal: str, ask: Ask) -> None:
        response = self.caller.send(*ask, timeout=TIMEOUT)
        assert response.status_code in (400, 404, 409), response.text
        assert response.json()["error"]["type"] == f"{refusal}Exception"
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
