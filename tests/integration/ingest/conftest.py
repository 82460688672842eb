from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.filedrop import Scene
from support.ingest import Door, IngestSite, new_table
from support.ingest_writer import StandInWriter, stand_in_writer
from support.kafka import Broker
from support.kafka_reading import MakeTopic, Topic


@pytest.fixture(scope="session")
def site(ingest_site: IngestSite) -> IngestSite:
    return ingest_site


@pytest.fixture(scope="session")
def running_door(site: IngestSite) -> Iterator[Door]:
    with site.api() as door:
        yield door


@pytest.fixture(scope="module")
def running_writer(site: IngestSite) -> Iterator[None]:
    with site.writer(writer__piece_bytes="100000"):
        yield


@pytest.fixture
def door(running_door: Door, running_writer: None) -> Door:
    """The REST door, with a writer behind it."""
    return running_door


@pytest.fixture
def make_topic(site: IngestSite, broker: Broker) -> MakeTopic:
    def make(partitions: int = 1, **settings: str) -> Topic:
        table = new_table()
        broker.create_topic(f"topic.{table}", partitions, **settings)
        return Topic(site, broker, f"topic.{table}", table)

    return make


@pytest.fixture
def writer(ledger_url: str) -> Iterator[StandInWriter]:
    """Of a ledger alone."""
    with stand_in_writer(ledger_url) as writer:
        yield writer


@pytest.fixture
def scene(tmp_path: Path, ledger_url: str, writer: StandInWriter) -> Scene:
    """Of dropped files."""
    return Scene(tmp_path, ledger_url, writer)
