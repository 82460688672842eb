"""The broker that tests of the Kafka door rely on: it keeps what it acknowledged, and Spark reads
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from support.kafka import Broker, running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "events"
# Whichever test comes first may also fetch the broker's jars.
pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    with running_broker(folder) as broker:
        broker.create_topic(TOPIC, partitions=2)
        yield broker


def produce(broker: Broker, *values: bytes) -> None:
    """Return when the broker has acknowledged every one of them."""
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % 2, on_delivery=note)
    assert producer.flush(30) == 0
    assert not failed


def consume(broker: Broker, count: int) -> list[bytes]:
    """So many messages from the beginning, for a consumer group of its own."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": f"readers-of-{count}",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([TOPIC])
        messages = consumer.consume(count, timeout=60)
        assert not [message.error() for message in messages if message.error()]
        return [message.value() or b"" for message in messages]
    finally:
        consumer.close()


def test_what_was_acknowledged_is_there_after_kill_9(broker: Broker) -> None:
    first = [b"before %d" % number for number in range(100)]
    produce(broker, *first)
    assert sorted(consume(broker, 100)) == sorted(first)

    port, pid = broker.port, broker.pid
    broker.kill()
    broker.start()
    assert broker.port == port
    assert broker.pid != pid

    second = [b"after %d" % number for number in range(100)]
    produce(broker, *second)
    assert sorted(consume(broker, 200)) == sorted(first + second)


def test_spark_reads_a_range_of_offsets(broker: Broker, spark: SparkSession) -> None:
    broker.create_topic("numbers")
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(10):
        producer.produce("numbers", b"%d" % number)
    assert producer.flush(30) == 0
    rows = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", "numbers")
        .option("startingOffsets", '{"numbers": {"0": 3}}')
        .option("endingOffsets", '{"numbers": {"0": 7}}')
        .load()
        .select("offset", "value")
        .collect()
    )
    assert [(row.offset, bytes(row.value)) for row in rows] == [
        (number, b"%d" % number) for number in range(3, 7)
    ]
