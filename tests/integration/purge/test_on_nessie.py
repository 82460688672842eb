"""A purge on a second catalog: Nessie, which vends STS credentials of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moraine.settings import CatalogSettings
from moraine.tasks.model import Status
from moraine.tasks.store import TaskStore
from support.drivers import settings_for
from support.nessie import Nessie
from support.s3_catalog import add_catalog
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET

from .conftest import NAMESPACE, Bench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def writer(spark: SparkSession, nessie: Nessie) -> str:
    add_catalog(spark, "nessie_for_purges", nessie.url, nessie.spark_properties())
    return "nessie_for_purges"


@pytest.fixture
def bench(
    store: TaskStore,
    tmp_path: Path,
    spark: SparkSession,
    seaweedfs: SeaweedFS,
    nessie: Nessie,
    writer: str,
) -> Bench:
    catalog = CatalogSettings(uri=nessie.url, warehouse=nessie.warehouse)
    return Bench(store, settings_for(tmp_path, {"nessie": catalog}), spark, seaweedfs, writer)


def objects(bench: Bench, name: str) -> set[str]:
    keys = bench.s3.keys_in(BUCKET, "nessie/")
    return {f"s3://{BUCKET}/{key}" for key in keys if f"/{name}" in key}


def test_purge_on_nessie_deletes_every_file_that_the_table_reaches(bench: Bench) -> None:
    name, beside = bench.write(**{"gc.enabled": "true"}), bench.write()
    before, others = objects(bench, name), objects(bench, beside)

    task = bench.attempt(bench.submit(name, catalog="nessie"))

    assert task.status is Status.SUCCESS, (task, bench.history(task.task_id))
    result = task.result or {}
    left = objects(bench, name)
    # Nessie shows a table as of its newest commit alone: older snapshots and metadata files belong
    # to its own history, and nothing in the table leads to them.
    assert all(uri.endswith(".metadata.json") or "/snap-" in uri for uri in left)
    assert result["files_deleted"] == len(before - left)
    assert result["by_kind"]["position_deletes"]["files"] == 1
    assert objects(bench, beside) == others


def test_purge_on_nessie_is_forbidden_by_default(bench: Bench) -> None:
    name = bench.write()
    before = objects(bench, name)
    task = bench.attempt(bench.submit(name, catalog="nessie"))
    assert (task.status, task.error_code) == (Status.FAILURE, "PURGE_FORBIDDEN")
    assert objects(bench, name) == before
    assert NAMESPACE in task.subject
