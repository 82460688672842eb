"""Purges on an object store: the steps of an attempt in this process, on a real Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uuid6

from moraine.ledger.pools import open_pool
from moraine.settings import CatalogSettings, Settings
from moraine.tasks.model import NewTask, Task, TaskVersion
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from support.drivers import Drivers, attempt, settings_for
from support.fault_proxy import FaultProxy
from support.platform import Failpoints
from support.s3_catalog import write_table
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET, new_name
from support.vending import VendingCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moraine.local.stack import Stack

NAMESPACE = "shop"


class Bench:
    """Where purges of tables on S3 are made, attempt by attempt."""

    def __init__(
        self,
        store: TaskStore,
        settings: Settings,
        spark: SparkSession,
        s3: SeaweedFS,
        writer: str,
    ) -> None:
        self.store, self.settings, self.spark, self.s3 = store, settings, spark, s3
        self._writer = writer
        self._attempts = 0

    def write(self, **how: Any) -> str:
        """A table with snapshots and a row-level delete; its name."""
        name = f"{new_name()}_{uuid.uuid4().hex[:6]}"
        write_table(self.spark, f"{self._writer}.{NAMESPACE}.{name}", **how)
        return name

    def objects(self, name: str) -> set[str]:
        """The table's objects, as the store has them."""
        prefix = f"warehouse/{NAMESPACE}/{name}/"
        return {f"s3://{BUCKET}/{key}" for key in self.s3.keys_in(BUCKET, prefix)}

    def submit(self, name: str, catalog: str = "lake", **parameters: Any) -> uuid.UUID:
        identity = {"catalog_name": catalog, "namespace_levels": [NAMESPACE], "table_name": name}
        payload = {"operation_parameters": {"table_identity": identity, **parameters}}
        task_id = uuid.UUID(int=uuid6.uuid7().int)
        task = NewTask(task_id, "demo", "TABLE_PURGE", payload, f"{catalog}.{NAMESPACE}.{name}")
        self.store.add(task)
        return task_id

    def attempt(self, task_id: uuid.UUID, **purge: Any) -> Task:
        """One attempt, with these settings of purge."""
        changed = self.settings.purge.model_copy(update=purge)
        settings = self.settings.model_copy(update={"purge": changed})
        self._attempts += 1
        worker = Worker(self.store, settings, f"attempt-{self._attempts}")
        attempt(worker, task_id, lambda: self.spark)
        return self.store.get(task_id)

    def history(self, task_id: uuid.UUID) -> list[TaskVersion]:
        return self.store.history(task_id)


@pytest.fixture
def store(ledger_url: str) -> Iterator[TaskStore]:
    settings = settings_for(Path("/"), {})
    with open_pool(ledger_url, size=8) as pool:
        yield TaskStore(pool, lease=settings.delegation.task.lease.lost_timeout_duration)


@pytest.fixture
def principal(vending_catalog: VendingCatalog) -> CatalogSettings:
    """Moraine's own, at the catalog that vends."""
    return CatalogSettings.model_validate(
        {
            "uri": vending_catalog.url,
            "allowed_locations": [f"s3://{BUCKET}/warehouse", f"s3://{BUCKET}/elsewhere"],
            "auth": {
                "kind": "oauth2",
                "client_id": vending_catalog.client_id,
                "client_secret": vending_catalog.client_secret,
                "scope": vending_catalog.scope,
            },
        }
    )


@pytest.fixture
def bench(
    store: TaskStore,
    tmp_path: Path,
    principal: CatalogSettings,
    spark: SparkSession,
    seaweedfs: SeaweedFS,
    lake: str,
    fault_proxy: FaultProxy,
) -> Bench:
    del fault_proxy
    return Bench(store, settings_for(tmp_path, {"lake": principal}), spark, seaweedfs, lake)


@pytest.fixture
def failpoints(spark_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failpoints]:
    """In this process and on the executors."""
    points = Failpoints(spark_stack.home / "failpoints")
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(points.folder))
    yield points
    points.clear()


@pytest.fixture
def drivers(bench: Bench, ledger_url: str, spark_stack: Stack, failpoints: Failpoints) -> Drivers:
    """Attempts in processes of their own, to be killed."""
    lease = bench.settings.delegation.task.lease
    environment = {
        "MORAINE_CATALOGS": json.dumps(
            {name: catalog.revealed() for name, catalog in bench.settings.catalogs.items()}
        ),
        "MORAINE_WORKSPACE": bench.settings.workspace,
        "MORAINE_LEDGER__URL": ledger_url,
        "MORAINE_FAILPOINTS": str(failpoints.folder),
        "MORAINE_DELEGATION__TASK__LEASE__LOST_TIMEOUT_DURATION": (
            f"{lease.lost_timeout_duration.total_seconds()}s"
        ),
        "MORAINE_DELEGATION__TASK__LEASE__HEARTBEAT_INTERVAL": "0.5s",
    }
    return Drivers(environment, spark_stack.spark.session_url, bench.store)
