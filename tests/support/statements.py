"""What engines do to a table, each a single commit, and whether it was done: once, and wholly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from moraine.client.adapter import IdempotentAdapter
from support.gateway import Scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = dict[int, str]

BEFORE: Rows = {1: "tea", 2: "salt", 3: "rice"}
ON_DISK = {
    "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    # So that a statement sends nothing but its commit, and reads.
    "rest-metrics-reporting-enabled": "false",
}
"""Spark's properties for a catalog on local files."""


def as_arrow(rows: Rows) -> Any:
    return pa.table({"id": pa.array(rows.keys(), pa.int64()), "item": list(rows.values())})


def connect(uri: str, **session: Any) -> RestCatalog:
    """PyIceberg; with keys, if an adapter is given."""
    catalog = RestCatalog("prod", uri=uri)
    if "adapter" in session:
        catalog._session.mount("http://", session["adapter"])
    return catalog


@dataclass(frozen=True)
class Place:
    """Where a statement runs: the engines, and how they reach the catalog."""

    spark: SparkSession
    alias: str
    """Spark's name for the catalog at `uri`."""
    uri: str
    scene: Scene
    direct: RestCatalog
    """Past the gateway."""

    def name(self, table: str) -> str:
        return f"{self.scene.namespace}.{table}"

    def load(self, table: str) -> Table:
        return self.direct.load_table(self.name(table))

    def write(self, table: str, properties: dict[str, str]) -> None:
        """A table with three rows in one file."""
        schema = as_arrow(BEFORE).schema
        made = self.direct.create_table(self.name(table), schema, properties=properties)
        made.append(as_arrow(BEFORE))

    def sql(self, text: str, table: str) -> None:
        self.spark.sql(text.format(table=f"{self.alias}.{self.name(table)}"))

    def pyiceberg(self) -> RestCatalog:
        return connect(self.uri, adapter=IdempotentAdapter())


@dataclass(frozen=True)
class Statement:
    run: Callable[[Place, str], None]
    after: Rows
    """What is in the table then."""
    columns: tuple[str, ...] = ("id", "item")
    makes: bool = False
    """Whether there is no table before."""
    twins: tuple[str, ...] = ("",)
    """What the names of the tables end with that it changes."""
    mode: str = "copy-on-write"

    def prepare(self, at: Place, table: str) -> None:
        for twin in () if self.makes else self.twins:
            at.write(table + twin, {"format-version": "2", "write.delete.mode": self.mode})

    def check(self, at: Place, table: str) -> None:
        for twin in self.twins:
            found = at.load(table + twin)
            assert found.schema().column_names == list(self.columns)
            check_files(found)
            rows = found.scan().to_arrow()
            assert sorted(zip(*rows.select(["id", "item"]).to_pydict().values(), strict=True)) == (
                sorted(self.after.items())
            )
            # A commit leaves one metadata file behind; without it these tables have one.
            assert len(found.metadata.metadata_log) == (0 if self.makes else 2)


def check_files(table: Table) -> None:
    """Every file that the table's snapshots need is there."""
    needed = [table.metadata_location]
    for snapshot in table.snapshots():
        needed.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            needed += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries)]
    missing = [path for path in needed if not table.io.new_input(path).exists()]
    assert not missing


def _spark(text: str) -> Callable[[Place, str], None]:
    return lambda at, table: at.sql(text, table)


def _append(at: Place, table: str) -> None:
    at.pyiceberg().load_table(at.name(table)).append(as_arrow({4: "oil"}))


def _delete(at: Place, table: str) -> None:
    at.pyiceberg().load_table(at.name(table)).delete("id = 2")


def _evolve(at: Place, table: str) -> None:
    with at.pyiceberg().load_table(at.name(table)).update_schema() as update:
        update.add_column("note", StringType())


def _create(at: Place, table: str) -> None:
    at.pyiceberg().create_table(at.name(table), as_arrow(BEFORE).schema)


def _commit_transaction(at: Place, table: str) -> None:
    """Of two tables at once, for which Spark has no statement."""
    changes = [_same_rows(at, table + twin) for twin in TRANSACTION.twins]
    ask = at.scene.transaction(*changes)
    with requests.Session() as session:
        session.mount("http://", IdempotentAdapter())
        session.post(f"{at.uri}/v1/{ask.path}", json=ask.body).raise_for_status()


def _same_rows(at: Place, table: str) -> dict[str, Any]:
    """A new snapshot, with the manifests of the current one."""
    change = at.scene.appended(table, 4711)
    [snapshot] = [one["snapshot"] for one in change["updates"] if one["action"] == "add-snapshot"]
    snapshot["manifest-list"] = at.load(table).current_snapshot().manifest_list  # type: ignore[union-attr]
    return change


WITH_OIL: Rows = {**BEFORE, 4: "oil"}
WITHOUT_SALT: Rows = {1: "tea", 3: "rice"}
WITH_SUGAR: Rows = {**BEFORE, 2: "sugar"}

TRANSACTION = Statement(_commit_transaction, BEFORE, twins=("", "_twin"))
UPDATE = Statement(_spark("UPDATE {table} SET item = 'sugar' WHERE id = 2"), WITH_SUGAR)
APPEND = Statement(_append, WITH_OIL)

STATEMENTS: dict[str, Statement] = {
    "insert": Statement(_spark("INSERT INTO {table} VALUES (4, 'oil')"), WITH_OIL),
    "delete": Statement(
        _spark("DELETE FROM {table} WHERE id = 2"), WITHOUT_SALT, mode="merge-on-read"
    ),
    "update": UPDATE,
    "merge": Statement(
        _spark(
            "MERGE INTO {table} AS old "
            "USING (SELECT 2 AS id, 'sugar' AS item UNION ALL SELECT 4, 'oil') AS new "
            "ON old.id = new.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ),
        {**WITH_SUGAR, 4: "oil"},
    ),
    "alter": Statement(
        _spark("ALTER TABLE {table} ADD COLUMN price DOUBLE"),
        BEFORE,
        columns=("id", "item", "price"),
    ),
    "create": Statement(_spark("CREATE TABLE {table} (id BIGINT, item STRING)"), {}, makes=True),
    "create as": Statement(
        _spark("CREATE TABLE {table} AS SELECT 4L AS id, 'oil' AS item"), {4: "oil"}, makes=True
    ),
    "replace": Statement(
        _spark("CREATE OR REPLACE TABLE {table} AS SELECT 4L AS id, 'oil' AS item"), {4: "oil"}
    ),
    "transaction": TRANSACTION,
    "pyiceberg append": APPEND,
    "pyiceberg delete": Statement(_delete, WITHOUT_SALT),
    "pyiceberg evolve": Statement(_evolve, BEFORE, columns=("id", "item", "note")),
    "pyiceberg create": Statement(_create, {}, makes=True),
}
