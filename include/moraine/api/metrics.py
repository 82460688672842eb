"""Prometheus metrics, read from the ledger: every API process tells the same numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from moraine.idempotency.store import count_records
from moraine.ingest.ledger import Backlog, KeeperLedger
from moraine.operations.purge.tombstones import TombstoneStore
from moraine.tasks.model import Status
from moraine.tasks.store import TaskStore

_LIVE = {status.value for status in Status if not status.terminal}


class LedgerMetrics:
    """Asks the ledger at most once in `cache_seconds`, however often it is scraped."""

    def __init__(self, store: TaskStore, tombstones: TombstoneStore, cache_seconds: float) -> None:
        self._store = store
        self._tombstones = tombstones
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._rendered = b""
        self._rendered_at = float("-inf")

    def render(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._rendered_at > self._cache_seconds:
                registry = CollectorRegistry()
                registry.register(_Totals(self._store.totals(), self._store.queue_age()))
                registry.register(
                    _Gateway(count_records(self._store.pool), len(self._tombstones.all()))
                )
                registry.register(_Ingest.of(KeeperLedger(self._store.pool)))
                self._rendered = generate_latest(registry)
                self._rendered_at = time.monotonic()
            return self._rendered


class _Totals:
    def __init__(self, totals: Sequence[dict[str, Any]], queue_age: float) -> None:
        self._totals = totals
        self._queue_age = queue_age

    def collect(self) -> Iterable[Metric]:
        labels = ["type", "status"]
        tasks = GaugeMetricFamily("moraine_tasks", "Tasks by type and state", labels=labels)
        finished = CounterMetricFamily(
            "moraine_tasks_finished", "Tasks that ended, by type and outcome", labels=labels
        )
        duration = SummaryMetricFamily(
            "moraine_task_duration_seconds", "From submission to the end", labels=labels
        )
        attempts = CounterMetricFamily("moraine_task_attempts", "Attempts made", labels=["type"])
        losses = CounterMetricFamily("moraine_lease_losses", "Leases lost", labels=["type"])
        files = CounterMetricFamily("moraine_files_deleted", "Files deleted", labels=["type"])
        size = CounterMetricFamily("moraine_bytes_deleted", "Bytes deleted", labels=["type"])
        for row in self._totals:
            both = [row["task_type"], row["status"]]
            if row["status"] in _LIVE:
                tasks.add_metric(both, float(row["tasks"]))
            else:
                finished.add_metric(both, float(row["tasks"]))
                duration.add_metric(both, int(row["tasks"]), float(row["seconds"]))
        for family, column in (
            (attempts, "attempts"),
            (losses, "lease_losses"),
            (files, "files_deleted"),
            (size, "bytes_deleted"),
        ):
            for task_type in sorted({row["task_type"] for row in self._totals}):
                total = sum(row[column] for row in self._totals if row["task_type"] == task_type)
                family.add_metric([task_type], float(total))
        yield from (tasks, finished, duration, attempts, losses, files, size)
        yield GaugeMetricFamily(
            "moraine_queue_age_seconds",
            "How long the oldest task that should be at work has waited",
            value=self._queue_age,
        )


class _Gateway:
    def __init__(self, keys: Mapping[str, int], hidden: int) -> None:
        self._keys = keys
        self._hidden = hidden

    def collect(self) -> Iterable[Metric]:
        keys = GaugeMetricFamily(
            "moraine_idempotency_keys", "Keys that are known, by state", labels=["state"]
        )
        for state, count in sorted(self._keys.items()):
            keys.add_metric([state], float(count))
        yield keys
        yield GaugeMetricFamily(
            "moraine_tombstones", "Tables that are being purged and dropped", value=self._hidden
        )


class _Ingest:
    def __init__(
        self,
        totals: Sequence[Mapping[str, Any]],
        commits: Sequence[Mapping[str, Any]],
        lags: Sequence[Mapping[str, Any]],
        backlog: Backlog,
    ) -> None:
        self._totals = totals
        self._commits = commits
        self._lags = lags
        self._backlog = backlog

    @classmethod
    def of(cls, ledger: KeeperLedger) -> _Ingest:
        return cls(ledger.totals(), ledger.commits(), ledger.lags(), ledger.backlog())

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "moraine_ingest_requests",
            "Requests by door and outcome: applied, rejected, replayed",
            labels=["door", "outcome"],
        )
        rows = CounterMetricFamily("moraine_ingest_rows", "Rows committed", labels=["door"])
        size = CounterMetricFamily(
            "moraine_ingest_bytes", "Bytes received that were committed", labels=["door"]
        )
        commits = SummaryMetricFamily(
            "moraine_ingest_commit_seconds", "Commits of batches to tables", labels=["writer"]
        )
        lag = GaugeMetricFamily(
            "moraine_ingest_kafka_lag",
            "Messages that are not read yet",
            labels=["topic", "partition", "table"],
        )
        for row in self._totals:
            requests.add_metric([row["door"], row["outcome"]], float(row["requests"]))
            if row["outcome"] == "applied":
                rows.add_metric([row["door"]], float(row["rows_ingested"]))
                size.add_metric([row["door"]], float(row["bytes_received"]))
        for row in self._commits:
            commits.add_metric([row["door"]], int(row["commits"]), float(row["seconds"]))
        for row in self._lags:
            labels = [row["topic"], str(row["partition"]), row["table_name"]]
            lag.add_metric(labels, float(row["lag"]))
        yield from (requests, rows, size, commits, lag)
        yield GaugeMetricFamily(
            "moraine_ingest_waiting",
            "Requests that wait to be written",
            value=self._backlog.requests,
        )
        yield GaugeMetricFamily(
            "moraine_ingest_waiting_bytes", "Their bytes", value=self._backlog.bytes
        )
        yield GaugeMetricFamily(
            "moraine_ingest_queue_age_seconds",
            "How long the oldest of them has waited",
            value=self._backlog.age,
        )
        yield GaugeMetricFamily(
            "moraine_ingest_failing",
            "Those that Spark has failed on",
            value=self._backlog.failing,
        )
