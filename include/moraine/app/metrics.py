"""Prometheus metrics. They are read from the ledger, so every API process reports the same numbers;
only the counts of refused requests are of one process."""

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

from moraine.drops.tombstones import TombstoneStore
from moraine.http.limits import LimitCounts
from moraine.idempotency.store import count_records
from moraine.ingest.model import Backlog
from moraine.ingest.store import HousekeepingStore
from moraine.tasks.model import Status
from moraine.tasks.operation import ResultFigure
from moraine.tasks.store import TaskStore

_LIVE = {status.value for status in Status if not status.terminal}


class LedgerMetrics:
    """Asks the ledger at most once in `cache_seconds`, however often it is scraped."""

    def __init__(
        self,
        store: TaskStore,
        tombstones: TombstoneStore,
        figures: Sequence[ResultFigure],
        cache_seconds: float,
        limited: LimitCounts | None = None,
    ) -> None:
        self._limited = limited or LimitCounts()
        self._store = store
        self._tombstones = tombstones
        self._figures = figures
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._rendered = b""
        self._rendered_at = float("-inf")

    def render(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._rendered_at > self._cache_seconds:
                registry = CollectorRegistry()
                registry.register(_Tasks.of(self._store, self._figures))
                registry.register(
                    _Gateway(count_records(self._store.pool), len(self._tombstones.all()))
                )
                registry.register(_Ingest.of(HousekeepingStore(self._store.pool)))
                registry.register(_Limits(self._limited.all()))
                self._rendered = generate_latest(registry)
                self._rendered_at = time.monotonic()
            return self._rendered


class _Tasks:
    def __init__(
        self,
        totals: Sequence[Mapping[str, Any]],
        figures: Sequence[ResultFigure],
        figure_totals: Mapping[tuple[str, str], float],
        queue_age: float,
    ) -> None:
        self._totals = totals
        self._figures = figures
        self._figure_totals = figure_totals
        self._queue_age = queue_age

    @classmethod
    def of(cls, store: TaskStore, figures: Sequence[ResultFigure]) -> _Tasks:
        figure_totals = store.figure_totals([figure.name for figure in figures])
        return cls(store.totals(), figures, figure_totals, store.queue_age())

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
        for row in self._totals:
            both = [row["task_type"], row["status"]]
            if row["status"] in _LIVE:
                tasks.add_metric(both, float(row["tasks"]))
            else:
                finished.add_metric(both, float(row["tasks"]))
                duration.add_metric(both, int(row["tasks"]), float(row["seconds"]))
        types = sorted({row["task_type"] for row in self._totals})
        for family, column in ((attempts, "attempts"), (losses, "lease_losses")):
            for task_type in types:
                total = sum(row[column] for row in self._totals if row["task_type"] == task_type)
                family.add_metric([task_type], float(total))
        yield from (tasks, finished, duration, attempts, losses)
        for figure in self._figures:
            sums = CounterMetricFamily(
                f"moraine_{figure.name}", figure.description, labels=["type"]
            )
            for task_type in types:
                total = self._figure_totals.get((task_type, figure.name), 0.0)
                sums.add_metric([task_type], total)
            yield sums
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


class _Limits:
    """Of this process only: to count in the ledger would cost what the limits save."""

    def __init__(self, refused: Mapping[str, int]) -> None:
        self._refused = refused

    def collect(self) -> Iterable[Metric]:
        limited = CounterMetricFamily(
            "moraine_requests_limited",
            "Requests that a limit of this process refused, by limit",
            labels=["limit"],
        )
        for limit, count in sorted(self._refused.items()):
            limited.add_metric([limit], float(count))
        yield limited


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
    def of(cls, ledger: HousekeepingStore) -> _Ingest:
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
            "Those whose last attempt failed",
            value=self._backlog.failing,
        )
