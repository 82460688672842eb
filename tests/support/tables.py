"""Tables of every shape, and what is on disk of them, found out without Moraine's own code.

workshop = Workshop(platform, "odd")
table = workshop.table("t", partitioned="part", **{"format-version": "3"})
workshop.insert(table, "SELECT id, 'a b' FROM range(10)")
workshop.forge(table, [f"{table.folder}/data/../../elsewhere"])
"""

from __future__ import annotations

import copy
import io
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet
import requests

from moraine.catalog.client import LoadedTable
from moraine.errors import MoraineError
from moraine.operations.purge import OPERATION
from moraine.operations.purge import service as purge_steps
from moraine.operations.purge.model import PurgeParameters
from moraine.spark.session import SessionFactory
from moraine.tasks.model import Task
from moraine.tasks.service import Submission
from moraine.tasks.worker import Worker
from support.platform import CATALOG, Platform, checksums

COLUMNS = "id BIGINT, part STRING"
MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
}
# Iceberg's numbers for what a manifest, and a file that it names, is about.
DATA, DELETES = 0, 1
EQUALITY = 2

STEPS = ("acquire", "plan", "delete", "verify", "settle")

_STALE_COUNTS = ("existing", "deleted")
_MEASURES = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)
_ENDINGS = {
    ".stats": "statistics",
    "version-hint.text": "version_hint",
    "-deletes.puffin": "deletion_vectors",
    "-deletes.parquet": "position_deletes",
    "-equality.parquet": "equality_deletes",
    ".parquet": "data",
}


@dataclass(frozen=True)
class Crafted:
    """A table, and every folder of this machine's disk that it writes to."""

    namespace: str
    name: str
    folders: tuple[Path, ...]

    @property
    def subject(self) -> str:
        quoted = self.name.replace("`", "``")
        return f"{CATALOG}.{self.namespace}.`{quoted}`"

    @property
    def folder(self) -> Path:
        return self.folders[0]

    def files(self) -> dict[str, str]:
        """Every file, with a checksum of its content; Hadoop's own checksums aside."""
        found: dict[str, str] = {}
        for folder in self.folders:
            found |= checksums(folder)
        return {path: content for path, content in found.items() if not path.endswith(".crc")}

    def leftovers(self) -> list[str]:
        """Every file without exception."""
        return [path for folder in self.folders for path in checksums(folder)]


@dataclass(frozen=True)
class PurgeAttempt:
    worker: Worker
    task_id: UUID
    spark: SessionFactory

    @property
    def task(self) -> Task:
        return self.worker.store.get(self.task_id)

    def take(self, step: str) -> bool:
        """Whether the step was done; if not, the task has the reason."""
        try:
            if step == "acquire":
                assert purge_steps.acquire(self.worker, self.task_id) is not None
            elif step == "settle":
                purge_steps.settle(self.worker, self.task_id)
            else:
                purge_steps.SPARK_STEPS[step](self.worker, self.task_id, self.spark)
        except MoraineError:
            return False
        return True


class Workshop:
    """Makes tables in a namespace of its own."""

    def __init__(self, platform: Platform, namespace: str) -> None:
        self.platform = platform
        self.namespace = f"{namespace}_{uuid.uuid4().hex[:8]}"
        self.folder = platform.warehouse / self.namespace
        self._api = f"{platform.stack.catalog.url}/v1/namespaces"
        self._rest("", {"namespace": [self.namespace], "properties": {}})

    # --- Tables -----------------------------------------------------------------------------

    def table(
        self,
        name: str,
        *,
        columns: str = COLUMNS,
        partitioned: str = "",
        location: str = "",
        folders: Iterable[Path] = (),
        **properties: str,
    ) -> Crafted:
        """A new, empty table; `folders` are those it writes to if not to the usual one."""
        made = Crafted(self.namespace, name, tuple(folders) or (self.folder / name,))
        options = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.sql(
            f"CREATE TABLE {made.subject} ({columns}) USING iceberg "
            + (f"PARTITIONED BY ({partitioned}) " if partitioned else "")
            + (f"LOCATION '{location}' " if location else "")
            + (f"TBLPROPERTIES ({options})" if options else "")
        )
        return made

    def bare_table(self, name: str, location: str = "", **properties: str) -> Crafted:
        """A new, empty table, made by the catalog alone, without Spark."""
        schema = {
            "type": "struct",
            "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
        }
        asked = {"name": name, "schema": schema, "properties": properties}
        answer = self._rest(
            f"/{self.namespace}/tables", asked | ({"location": location} if location else {})
        )
        folder = Path(answer["metadata-location"].removeprefix("file:")).parents[1]
        return Crafted(self.namespace, name, (folder,))

    def register(self, name: str, metadata: Path, *folders: Path) -> Crafted:
        """A table made of a metadata file that is there already."""
        self._rest(
            f"/{self.namespace}/register",
            {"name": name, "metadata-location": f"file:{metadata}"},
        )
        return Crafted(self.namespace, name, folders or (metadata.parents[1],))

    def forget(self, table: Crafted) -> None:
        """Drop it from the catalog; its files stay."""
        self.platform.catalog.drop_table([table.namespace], table.name)

    def sql(self, statement: str) -> list[Any]:
        return self.platform.spark.sql(statement).collect()

    def insert(self, table: Crafted, query: str) -> None:
        self.sql(f"INSERT INTO {table.subject} {query}")

    def call(self, procedure: str, table: Crafted, **arguments: str) -> list[Any]:
        named = {"table": f"'{table.namespace}.`{table.name}`'", **arguments}
        given = ", ".join(f"{name} => {value}" for name, value in named.items())
        return self.sql(f"CALL {CATALOG}.system.{procedure}({given})")

    def load(self, table: Crafted) -> LoadedTable:
        return self.platform.catalog.load_table([table.namespace], table.name)

    def count(self, table: Crafted) -> int:
        rows = self.sql(f"SELECT count(*) AS rows FROM {table.subject}")
        return int(rows[0]["rows"])

    # --- What Spark does not write ------------------------------------------------------------

    def commit(self, table: Crafted, *updates: Mapping[str, Any]) -> None:
        """Change a table over the catalog's API, as any client of it can."""
        path = f"/{table.namespace}/tables/{quote(table.name, safe='')}"
        self._rest(path, {"requirements": [], "updates": list(updates)})

    def set_properties(self, table: Crafted, **properties: str) -> None:
        self.commit(table, {"action": "set-properties", "updates": properties})

    def forge(self, table: Crafted, paths: Sequence[str]) -> None:
        """Commit a snapshot whose manifest names these data files, whatever they are."""
        model = next(iter(self._entries(table, DATA)))
        self._append(table, DATA, [model | {"file_path": path} for path in paths])

    def delete_by_equality(self, table: Crafted, ids: Sequence[int]) -> Path:
        """Delete rows by the value of `id`: an equality delete, which Spark reads but never
        writes."""
        field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
        file = table.folder / "data" / f"{uuid.uuid4()}-equality.parquet"
        pyarrow.parquet.write_table(pa.table([pa.array(ids)], pa.schema([field])), file)
        model = next(iter(self._entries(table, DELETES)))
        entry = model | {
            "content": EQUALITY,
            "file_path": f"file:{file}",
            "file_size_in_bytes": file.stat().st_size,
            "record_count": len(ids),
            "equality_ids": [1],
        }
        # What the model knows about its own file is not true of this one.
        for known in (*_MEASURES, "referenced_data_file"):
            if known in entry:
                entry[known] = None
        self._append(table, DELETES, [entry])
        return file

    def _entries(self, table: Crafted, content: int) -> Iterator[dict[str, Any]]:
        for manifest in self.manifests(table):
            if manifest.get("content", DATA) == content:
                for entry in read_avro(manifest["manifest_path"]).rows:
                    yield entry["data_file"]

    def manifests(self, table: Crafted) -> list[dict[str, Any]]:
        """Those of the current snapshot."""
        return read_avro(current_snapshot(self.load(table))["manifest-list"]).rows

    def _append(self, table: Crafted, content: int, files: Sequence[dict[str, Any]]) -> None:
        loaded = self.load(table)
        before = current_snapshot(loaded)
        listed = read_avro(before["manifest-list"])
        model = next(row for row in listed.rows if row.get("content", DATA) == content)
        new_id, number = uuid.uuid4().int >> 66, before.get("sequence-number", 0) + 1
        folder = Path(local(loaded.metadata_location)).parent

        manifest = read_avro(model["manifest_path"])
        entry = copy.deepcopy(manifest.rows[0]) | {"status": 1, "snapshot_id": new_id}
        for inherited in ("sequence_number", "file_sequence_number"):
            if inherited in entry:
                entry[inherited] = None
        manifest.rows = [entry | {"data_file": file} for file in files]
        named = folder / f"{uuid.uuid4()}-m0.avro"
        manifest.write(named)

        row = copy.deepcopy(model) | {
            "manifest_path": f"file:{named}",
            "manifest_length": named.stat().st_size,
            "added_snapshot_id": new_id,
        }
        counts = {"sequence_number": number, "min_sequence_number": number}
        counts |= {"added_files_count": len(files), "added_rows_count": len(files)}
        counts |= {
            f"{kind}_{what}_count": 0 for kind in _STALE_COUNTS for what in ("files", "rows")
        }
        listed.rows.append(row | {name: value for name, value in counts.items() if name in row})
        listed.header |= {"snapshot-id": str(new_id), "sequence-number": str(number)}
        list_file = folder / f"snap-{new_id}-1-{uuid.uuid4()}.avro"
        listed.write(list_file)

        snapshot = {
            "snapshot-id": new_id,
            "parent-snapshot-id": before["snapshot-id"],
            "sequence-number": number,
            "timestamp-ms": before["timestamp-ms"] + 1,
            "manifest-list": f"file:{list_file}",
            "summary": {"operation": "append"},
            "schema-id": before["schema-id"],
        }
        if "next-row-id" in loaded.metadata:
            snapshot |= {"first-row-id": loaded.metadata["next-row-id"], "added-rows": len(files)}
        self.commit(
            table,
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": new_id,
            },
        )

    # --- Purges -----------------------------------------------------------------------------

    def payload(self, table: Crafted, **parameters: Any) -> dict[str, Any]:
        payload = self.platform.client.purge_payload(CATALOG, [table.namespace], table.name)
        payload["operation_parameters"] |= parameters
        return payload

    def purge(
        self, table: Crafted, settings: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Task:
        """Purge a table step by step in this process: where Airflow makes no difference, it
        need not cost its time. `settings` are laid over those of a purge."""
        attempt = self.attempt(table, settings, **parameters)
        for step in STEPS:
            if not attempt.take(step):
                break
        return attempt.task

    def attempt(
        self, table: Crafted, settings: Mapping[str, Any] | None = None, **parameters: Any
    ) -> PurgeAttempt:
        """The same, for a test that runs the steps itself."""
        service = self.platform.service
        changed = service.settings.purge.model_copy(update=dict(settings or {}))
        asked = PurgeParameters.model_validate(
            self.payload(table, **parameters)["operation_parameters"]
        )
        admitted = service.admit(Submission(OPERATION, asked, service.settings.realm, "test"))
        worker = Worker(
            service.store,
            service.settings.model_copy(update={"purge": changed}),
            f"test-{uuid.uuid4()}",
        )
        return PurgeAttempt(worker, admitted.task_id, lambda: self.platform.spark)

    def _rest(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = requests.post(f"{self._api}{path}", json=body, timeout=30)
        assert response.status_code == 200, response.text
        return dict(response.json())


def kinds_on_disk(table: Crafted, current: str) -> dict[str, dict[str, int]]:
    """Files and bytes by kind, told by the names that Iceberg's writers give them."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path in table.files():
        kind = "current_metadata" if path == local(current) else _kind_of(Path(path).name)
        files[kind] += 1
        sizes[kind] += Path(path).stat().st_size
    return {kind: {"files": files[kind], "bytes": sizes[kind]} for kind in files}


def _kind_of(name: str) -> str:
    if name.endswith(".metadata.json"):
        return "old_metadata"
    if name.endswith(".avro"):
        return "manifest_list" if name.startswith("snap-") else "manifest"
    if name.startswith("partition-stats-"):
        return "partition_statistics"
    for ending, kind in _ENDINGS.items():
        if name.endswith(ending):
            return kind
    raise AssertionError(f"no writer of Iceberg's gives a file the name {name}")


@dataclass
class AvroFile:
    schema: dict[str, Any]
    header: dict[str, str]
    rows: list[dict[str, Any]]

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            fastavro.writer(file, self.schema, self.rows, "deflate", metadata=self.header)


def read_avro(location: str) -> AvroFile:
    reader = fastavro.reader(io.BytesIO(Path(local(location)).read_bytes()))
    header = {key: str(value) for key, value in reader.metadata.items()}
    schema = json.loads(header.pop("avro.schema"))
    header.pop("avro.codec", None)
    rows = [row for row in reader if isinstance(row, dict)]
    return AvroFile(schema, header, rows)


def current_snapshot(table: LoadedTable) -> dict[str, Any]:
    current = table.metadata["current-snapshot-id"]
    [snapshot] = [one for one in table.metadata["snapshots"] if one["snapshot-id"] == current]
    return dict(snapshot)


def local(location: str) -> str:
    """Iceberg's local locations as paths."""
    return "/" + location.removeprefix("file:").lstrip("/")
