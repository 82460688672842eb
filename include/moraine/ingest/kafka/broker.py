"""The Kafka broker: where the partitions of a topic begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
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
from moraine.ingest.kafka.model import Bounds, Offsets

_TIMEOUT = 10.0
_POLL_SECONDS = 0.1
_SILENT = "The Kafka broker does not answer."
# To find a broker soon after it comes back.
_RECONNECT = {"reconnect.backoff.max.ms": "1000"}
_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The answer of a broker that is too old for topic ids."""

# Our own words: the client's messages may contain secrets.
_REFUSALS = {
    KafkaError._AUTHENTICATION: "The Kafka broker refuses the login: see ingest.kafka.properties.",
    KafkaError._SSL: "The Kafka broker's certificate is not trusted, or it speaks no TLS: see "
    "ingest.kafka.properties.",
}


class BrokerUnavailable(TransientError, code="KAFKA_UNAVAILABLE", http_status=502):
    """The Kafka broker does not answer, or does not know the topic."""


class PropertiesRefused(FinalError, code="KAFKA_PROPERTIES_REFUSED", http_status=500):
    """The Kafka client refuses a property in ingest.kafka.properties."""


class Broker:
    """Asks for offsets. Spark reads the messages; there is no consumer group."""

    def __init__(self, servers: str, properties: Mapping[str, str]) -> None:
        given = for_librdkafka(properties)
        self._errors: list[KafkaError] = []
        # Not a bound method: the client would keep this object alive.
        own: dict[str, Any] = {"bootstrap.servers": servers, "error_cb": self._errors.append}
        try:
            self._admin = AdminClient({**_RECONNECT, **given, **own})
        except KafkaException as error:
            # The client's message contains the value, which may be a secret.
            named = [name for name in given if f'"{name}"' in str(error)]
            which = ", ".join(named) or "it does not say which"
            raise PropertiesRefused(f"The Kafka client refuses a property: {which}.") from None

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
            raise _translated(error, topic) from error

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
        asked = self._admin.list_offsets(
            dict.fromkeys(partitions, spec),
            # Without messages of open transactions.
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_TIMEOUT,
        )
        return {one.partition: self._answer(answer).offset for one, answer in asked.items()}

    def _answer(self, future: Future[Any]) -> Any:
        """A refused client retries for ever, and reports the reason only through its callback."""
        give_up_at = time.monotonic() + _TIMEOUT + 5
        while not future.done() and time.monotonic() < give_up_at:
            with suppress(NoAnswer):
                return future.result(_POLL_SECONDS)
            self._admin.poll(0)
            for error in self._errors:
                if message := _REFUSALS.get(error.code()):
                    raise BrokerUnavailable(message, details=error.name())
        return future.result(0)


def _translated(error: KafkaException, topic: str) -> BrokerUnavailable:
    reason = error.args[0]
    name = reason.name() if isinstance(reason, KafkaError) else type(error).__name__
    if name == "UNKNOWN_TOPIC_OR_PART":
        return BrokerUnavailable(f"The broker does not know the topic {topic}.", details=name)
    return BrokerUnavailable(_SILENT, details=name)
