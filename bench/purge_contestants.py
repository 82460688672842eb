"""Who deletes a table's files in the purge benchmark, and how long each takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import obstore
import psutil
from obstore.store import S3Store

from moraine.operations.processes import open_service
from moraine.operations.purge import OPERATION
from moraine.operations.purge import service as purge_steps
from moraine.operations.purge.model import PurgeParameters
from moraine.settings import get_settings
from moraine.tasks.model import Status
from moraine.tasks.service import Submission
from moraine.tasks.worker import Worker
from purge_site import BenchTable, Site
from resources import PeakMemory
from s3_servers import BUCKET

# A process of its own, so that it has nothing else to do and leaves nothing behind.
_UNLINK_LOOP = """
import os, sys, time
paths = [os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names]
started = time.perf_counter()
for path in paths:
    os.unlink(path)
print(len(paths), time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Deleted:
    files: int
    seconds: float


@dataclass(frozen=True)
class Purged:
    """What Moraine did, how long its steps took, and the most memory that was seen, in MB."""

    files: int
    plan: float
    delete: float
    verify: float
    """Looking for every file once more, which no other contestant does."""
    root: float
    """Deleting the current metadata file, with all the step does around that."""
    driver_mb: float
    spark_mb: float

    @property
    def whole(self) -> Deleted:
        return Deleted(self.files, self.plan + self.delete + self.root)

    @property
    def verified(self) -> Deleted:
        return Deleted(self.files, self.whole.seconds + self.verify)

    @property
    def planned(self) -> Deleted:
        return Deleted(self.files, self.plan)

    @property
    def deleted(self) -> Deleted:
        return Deleted(self.files, self.delete + self.root)


class Moraine:
    """The steps as a Dag runs them: the catalog asked, the ledger written, under its fence."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def purge(self, table: BenchTable) -> Purged:
        with (
            self._working_on(table) as (worker, task_id),
            PeakMemory(psutil.Process()) as driver,
            PeakMemory(self._site.spark_process) as spark,
        ):
            plan, delete, last = (
                _seconds(partial(step, worker, task_id, lambda: self._site.spark))
                for step in (purge_steps.plan, purge_steps.delete, purge_steps.verify)
            )
            ended, _ = purge_steps.settle(worker, task_id)
        assert ended.status is Status.SUCCESS, ended
        result: dict[str, Any] = ended.result or {}
        assert result["files_deleted"] > table.files, result
        verify = result["seconds"]["verify"]
        memory = (driver.peak / 1e6, spark.peak / 1e6)
        return Purged(result["files_deleted"], plan, delete, verify, last - verify, *memory)

    @contextmanager
    def _working_on(self, table: BenchTable) -> Iterator[tuple[Worker, UUID]]:
        settings = get_settings()
        asked = {
            "table_identity": {
                "catalog_name": table.catalog,
                "namespace_levels": [table.namespace],
                "table_name": table.name,
            }
        }
        submission = Submission(
            OPERATION, PurgeParameters.model_validate(asked), settings.realm, "bench"
        )
        with open_service(settings) as service:
            task = service.admit(submission)
            worker = Worker(service.store, settings, "bench", self._site.catalogs.__getitem__)
            assert purge_steps.acquire(worker, task.task_id)
            yield worker, task.task_id


class IcebergAction:
    """DeleteReachableFiles, on the FileIO of the table, as its users call it."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def purge(self, table: BenchTable) -> Deleted:
        return self._execute(self._action(table), table)

    def enumerate(self, table: BenchTable) -> Deleted:
        """As if it deleted, but with a function that does nothing."""
        nothing = self._site.jvm.moraine.bench.BenchTables.deletingNothing()
        return self._execute(self._action(table).deleteWith(nothing), table)

    def _action(self, table: BenchTable) -> Any:
        actions = self._site.jvm.org.apache.iceberg.spark.actions.SparkActions
        spark = actions.get(self._site.spark._jsparkSession)
        return spark.deleteReachableFiles(table.metadata_location).io(table.loaded.io())

    def _execute(self, action: Any, table: BenchTable) -> Deleted:
        started = time.perf_counter()
        result = action.execute()
        seconds = time.perf_counter() - started
        assert result.deletedDataFilesCount() == table.files, result.deletedDataFilesCount()
        others = (
            result.deletedManifestsCount()
            + result.deletedManifestListsCount()
            + result.deletedOtherFilesCount()
        )
        return Deleted(table.files + others, seconds)


def unlink_one_by_one(table: BenchTable) -> Deleted:
    """Every file of the table, by one process that has the list ready."""
    done = subprocess.run(
        [sys.executable, "-c", _UNLINK_LOOP, table.folder],
        check=True,
        capture_output=True,
        text=True,
    )
    files, seconds = done.stdout.split()
    return Deleted(int(files), float(seconds))


class BareClient:
    """A client of S3 that has the list of a table's objects ready.

    It has as many requests under way as Moraine has, from as many Spark tasks as run at once.
    """

    def __init__(self, site: Site, table: BenchTable) -> None:
        self._site = site
        self._store = S3Store(
            BUCKET,
            endpoint=site.servers[table.catalog].url,
            region="us-east-1",
            access_key_id="bench",
            secret_access_key="bench",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        pages = obstore.list(self._store, table.prefix)
        self._keys = [item["path"] for page in pages for item in page]

    def delete(self) -> Deleted:
        purge = get_settings().purge
        size = purge.keys_per_request
        batches = [self._keys[at : at + size] for at in range(0, len(self._keys), size)]
        at_once = purge.requests_at_once * self._site.spark.sparkContext.defaultParallelism
        with ThreadPoolExecutor(at_once) as pool:
            started = time.perf_counter()
            list(pool.map(lambda batch: obstore.delete(self._store, batch), batches))
            return Deleted(len(self._keys), time.perf_counter() - started)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
