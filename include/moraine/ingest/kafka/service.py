"""All topics, one after the other, for as long as their reader is let."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from moraine.errors import MoraineError, SparkJobFailed, SparkUnavailable
from moraine.ingest.kafka.reader import TopicReader
from moraine.ingest.ledger import WriterLedger
from moraine.log import get_logger

log = get_logger(__name__)

_LONGEST_PAUSE = 30.0


class KafkaReader:
    def __init__(
        self,
        readers: Mapping[str, TopicReader],
        ledger: WriterLedger,
        *,
        poll_interval: timedelta,
        lease: timedelta,
    ) -> None:
        self._readers = readers
        self._ledger = ledger
        self._poll_interval = poll_interval.total_seconds()
        self._lease = lease.total_seconds()
        self._stop = threading.Event()
        self._failures: dict[str, tuple[int, MoraineError]] = {}
        self._resume_at: dict[str, float] = {}

    def stop(self) -> None:
        self._stop.set()

    def run(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> int:
        """Read for so long, or until stopped or over. How many messages that were.

        A topic that fails is tried again after a pause, which does not stop the others. Raises what
        the last of them failed with at the end; and SparkUnavailable at once, when Spark went away.
        """
        end = time.monotonic() + seconds
        total = 0
        with self._heartbeats():
            while not self._stop.is_set() and time.monotonic() < end and not is_over():
                read = sum(self._read(topic) for topic in self._readers)
                total += read
                if not read:
                    self._stop.wait(self._poll_interval)
        for _, error in self._failures.values():
            raise error
        return total

    def _read(self, topic: str) -> int:
        if self._stop.is_set() or time.monotonic() < self._resume_at.get(topic, 0):
            return 0
        try:
            read = self._readers[topic].read_next()
        except MoraineError as error:
            if isinstance(error, SparkUnavailable) and not isinstance(error, SparkJobFailed):
                raise  # the session is of no use any more; the next run makes another
            times = self._failures.get(topic, (0, error))[0] + 1
            pause = min(_LONGEST_PAUSE, self._poll_interval * 2**times)
            self._failures[topic] = times, error
            self._resume_at[topic] = time.monotonic() + pause
            log.warning(
                "kafka.topic.failed", topic=topic, error=error.code, why=str(error), again_in=pause
            )
            return 0
        self._failures.pop(topic, None)
        return read

    @contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Renew the leases of what is under way, also while Spark takes long."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(self._lease / 4):
                try:
                    active = [one for reader in self._readers.values() for one in {*reader.active}]
                    self._ledger.heartbeat(active)
                    if lost := self._ledger.lose_silent():
                        log.warning("ingest.batches.taken_over", batches=len(lost))
                        next(iter(self._readers.values())).interrupt(lost)
                except MoraineError as error:
                    log.warning("kafka.reader.pulse", error=error.code)

        thread = threading.Thread(target=beat, name="kafka-heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(10)
