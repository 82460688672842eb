"""Fixtures around an object store: the store, the ways to it, the catalogs on it, and Spark.

A conftest imports the ones it wants. Those of a session are started once for each conftest that
does, so folders that want to share them leave it to a conftest above both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moraine.local.stack import Stack
from support.fault_proxy import FaultProxy
from support.nessie import Nessie, running_nessie
from support.s3_catalog import add_catalog, running_s3_catalog
from support.seaweedfs import SeaweedFS, running_seaweedfs
from support.vending import VendingCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKET = "lake"

_names = itertools.count(1)


def new_name() -> str:
    """For a table or a prefix that no other test has."""
    return f"t{next(_names)}"


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """An S3 that checks signatures and session policies, with one bucket."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as store:
        store.create_bucket(BUCKET)
        yield store


@pytest.fixture(scope="session")
def running_fault_proxy(seaweedfs: SeaweedFS) -> Iterator[FaultProxy]:
    with FaultProxy(seaweedfs.endpoint, {seaweedfs.access_key: seaweedfs.secret_key}) as proxy:
        yield proxy


@pytest.fixture
def fault_proxy(running_fault_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """A way to the store, without rules and with counters at zero."""
    running_fault_proxy.clear()
    yield running_fault_proxy
    running_fault_proxy.clear()


@pytest.fixture(scope="session")
def s3_catalog(tmp_path_factory: pytest.TempPathFactory, seaweedfs: SeaweedFS) -> Iterator[str]:
    """The URL of a REST catalog on the store that knows no authentication and vends nothing."""
    folder = tmp_path_factory.mktemp("s3_catalog")
    with running_s3_catalog(folder, seaweedfs.properties(), f"s3://{BUCKET}/warehouse") as url:
        yield url


@pytest.fixture(scope="session")
def running_vending_catalog(
    s3_catalog: str, seaweedfs: SeaweedFS, running_fault_proxy: FaultProxy
) -> Iterator[VendingCatalog]:
    with VendingCatalog(s3_catalog, seaweedfs, running_fault_proxy) as catalog:
        yield catalog


@pytest.fixture
def vending_catalog(
    running_vending_catalog: VendingCatalog, fault_proxy: FaultProxy
) -> Iterator[VendingCatalog]:
    """The same tables behind tokens and vended keys, whose holders go through the fault proxy."""
    running_vending_catalog.heal()
    yield running_vending_catalog
    running_vending_catalog.heal()


@pytest.fixture(scope="session")
def nessie(tmp_path_factory: pytest.TempPathFactory, seaweedfs: SeaweedFS) -> Iterator[Nessie]:
    folder = tmp_path_factory.mktemp("nessie")
    with running_nessie(folder, seaweedfs, f"s3://{BUCKET}/nessie") as nessie:
        yield nessie


@pytest.fixture(scope="session")
def spark_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which only Spark runs, with failpoints in the folder `failpoints`."""
    home: Path = tmp_path_factory.mktemp("spark")
    (home / "failpoints").mkdir()
    with Stack.ephemeral(home) as stack:
        failpoints = {"MORAINE_FAILPOINTS": str(home / "failpoints")}
        stack.up({"spark"}, extra_env={**failpoints, "NOT_FOR_SPARK": "1"})
        yield stack


@pytest.fixture(scope="session")
def spark(spark_stack: Stack) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession  # late: it takes seconds

    session = SparkSession.builder.remote(spark_stack.spark.client_url).create()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lake(spark: SparkSession, s3_catalog: str, seaweedfs: SeaweedFS) -> str:
    """The name under which Spark knows `s3_catalog`, with the store's own keys."""
    add_catalog(spark, "lake", s3_catalog, seaweedfs.properties())
    return "lake"
