"""What a broker has of a topic: where its partitions begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from moraine.errors import TransientError
from moraine.ingest.kafka.offsets import Offsets

_TIMEOUT = 10.0


class BrokerUnavailable(TransientError):
    """The Kafka broker does not answer, or does not know the topic."""

    code = "KAFKA_UNAVAILABLE"
    http_status = 502


class MessagesMissing(TransientError):
    """The topic has lost messages that were not read yet."""

    code = "KAFKA_MESSAGES_MISSING"
    http_status = 409


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a topic's partitions: the first message there is, and the one that comes next."""

    first: Offsets
    end: Offsets


class Broker:
    """Asks for offsets. Messages are read by Spark; nobody joins a consumer group."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        self._consumer = Consumer(
            {
                **properties,
                "bootstrap.servers": servers,
                "group.id": "moraine-offsets",
                "enable.auto.commit": False,
                # Messages of open transactions are not there yet.
                "isolation.level": "read_committed",
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def bounds(self, topic: str) -> Bounds:
        try:
            found = self._consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
            if found.error is not None:
                raise BrokerUnavailable(f"The broker does not know the topic {topic}.")
            first, end = {}, {}
            for partition in found.partitions:
                first[partition], end[partition] = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=_TIMEOUT
                )
            return Bounds(first, end)
        except KafkaException as error:
            reason = error.args[0]
            name = reason.name() if isinstance(reason, KafkaError) else type(error).__name__
            raise BrokerUnavailable("The Kafka broker does not answer.", details=name) from error


def next_range(
    known: Mapping[int, int],
    bounds: Bounds,
    *,
    from_end: bool,
    most: int,
    skip_missing: bool,
) -> tuple[Offsets, Offsets]:
    """What to read next: from which offset, and up to which, by partition.

    A partition that nobody has read begins at its first message, or at its end. Raises if the
    broker has no longer what was not read yet, or never had what was.
    """
    starts, ends = {}, {}
    for partition, end in bounds.end.items():
        first = bounds.first[partition]
        start = known.get(partition, end if from_end and not known else first)
        if not first <= start <= end:
            if not skip_missing:
                raise MessagesMissing(
                    f"Partition {partition} is to be read from offset {start}, but has {first} to "
                    f"{end}. Set ingest.kafka.missing-messages to skip to go on with {first}."
                )
            start = first
        starts[partition], ends[partition] = start, min(end, start + most)
    return starts, ends
