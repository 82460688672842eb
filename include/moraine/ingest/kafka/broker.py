"""What a broker has of a topic: where its partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from moraine.errors import FinalError, TransientError
from moraine.ingest.kafka.clients import for_librdkafka
from moraine.ingest.kafka.offsets import Offsets, Position

_TIMEOUT = 10.0
_LOOK_SECONDS = 0.1
_SILENT = "The Kafka broker does not answer."
# So that a broker that comes back is found soon.
_RECONNECT = {"reconnect.backoff.max.ms": "1000"}
_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker that is too old for ids says."""


# Our own words: those of the client may have more than everybody should read.
_REFUSALS = {
    KafkaError._AUTHENTICATION: "The Kafka broker refuses the login: see ingest.kafka.properties.",
    KafkaError._SSL: "The Kafka broker's certificate is not trusted, or it speaks no TLS: see "
    "ingest.kafka.properties.",
}


class BrokerUnavailable(TransientError):
    """The Kafka broker does not answer, or does not know the topic."""

    code = "KAFKA_UNAVAILABLE"
    http_status = 502


class PropertiesRefused(FinalError):
    """The Kafka client refuses what ingest.kafka.properties has."""

    code = "KAFKA_PROPERTIES_REFUSED"
    http_status = 500


class MessagesMissing(TransientError):
    """The topic has lost messages that were not read yet."""

    code = "KAFKA_MESSAGES_MISSING"
    http_status = 409


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a topic's partitions: the first message there is, and the one that comes next."""

    first: Offsets
    end: Offsets
    topic_id: str = ""


class Broker:
    """Asks for offsets. Messages are read by Spark; nobody joins a consumer group."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        given = for_librdkafka(properties)
        self._errors: list[KafkaError] = []
        # Not a method of our own: whoever holds the client must not be held by it.
        own: dict[str, Any] = {"bootstrap.servers": servers, "error_cb": self._errors.append}
        try:
            self._admin = AdminClient({**_RECONNECT, **given, **own})
        except KafkaException as error:
            # Its own words have the value, which may be a secret.
            named = [name for name in given if f'"{name}"' in str(error)]
            raise PropertiesRefused(
                f"The Kafka client refuses a property: {', '.join(named) or 'which, is not said'}."
            ) from None

    def bounds(self, topic: str) -> Bounds:
        self._errors.clear()
        try:
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT)
            found = self._answer(asked[topic])
            partitions = [TopicPartition(topic, partition.id) for partition in found.partitions]
            topic_id = str(found.topic_id or "")
            return Bounds(
                self._offsets(partitions, _FIRST),
                self._offsets(partitions, _END),
                "" if topic_id == _NO_ID else topic_id,
            )
        except NoAnswer as error:
            raise BrokerUnavailable(_SILENT) from error
        except KafkaException as error:
            raise _told_apart(error, topic) from error

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        asked = self._admin.list_offsets(
            dict.fromkeys(partitions, spec),
            # Messages of open transactions are not there yet.
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_TIMEOUT,
        )
        return {one.partition: self._answer(answer).offset for one, answer in asked.items()}

    def _answer(self, future: Future[Any]) -> Any:
        """A client that is refused goes on trying, and is told why only beside its requests."""
        give_up_at = time.monotonic() + _TIMEOUT + 5
        while not future.done() and time.monotonic() < give_up_at:
            with suppress(NoAnswer):
                return future.result(_LOOK_SECONDS)
            self._admin.poll(0)
            for error in self._errors:
                if message := _REFUSALS.get(error.code()):
                    raise BrokerUnavailable(message, details=error.name())
        return future.result(0)


def _told_apart(error: KafkaException, topic: str) -> BrokerUnavailable:
    reason = error.args[0]
    name = reason.name() if isinstance(reason, KafkaError) else type(error).__name__
    if name == "UNKNOWN_TOPIC_OR_PART":
        return BrokerUnavailable(f"The broker does not know the topic {topic}.", details=name)
    return BrokerUnavailable(_SILENT, details=name)


def next_range(
    known: Position,
    bounds: Bounds,
    *,
    from_end: bool,
    most: int,
    skip_missing: bool,
) -> tuple[Offsets, Offsets]:
    """What to read next: from which offset, and up to which, by partition.

    A partition that nobody has read begins at its first message, or at its end if the whole topic
    is to begin there. Raises if the broker has no longer what was not read yet, or never had what
    was.
    """
    if not known.is_of(bounds.topic_id) and not skip_missing:
        raise MessagesMissing(
            "The topic was deleted and made again, so nobody knows what was not read of the old "
            "one. Set ingest.kafka.missing-messages to skip to read the new one from its beginning."
        )
    before = known.of(bounds.topic_id).next
    starts, ends = {}, {}
    for partition, end in sorted(bounds.end.items()):
        first = bounds.first[partition]
        start = before.get(partition, end if from_end and not known.next else first)
        if not first <= start <= end:
            if not skip_missing:
                raise MessagesMissing(
                    f"Partition {partition} is to be read from offset {start}, but has {first} to "
                    f"{end}. Set ingest.kafka.missing-messages to skip to go on with {first}."
                )
            start = first
        starts[partition], ends[partition] = start, min(end, start + most)
    return starts, ends
