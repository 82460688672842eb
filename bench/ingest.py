"""How fast lines of JSON become rows of a table: against Spark's own reader, against pyiceberg, and
against Parquet that only has to be rewritten. What a small request waits for, whether a table of
many commits becomes slow, and how much memory the API needs for large bodies.

Everybody works on the same rows, in tables of the same making, on one stack. Rounds are interleaved
and change their order; what counts are medians. The writer, the API and the clients are processes
of their own, and all of them share the cores with Spark, the catalog and the database.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import structlog
from rich.console import Console

from ingest_contestants import (
    Contestant,
    Moraine,
    ParquetFloor,
    PyIceberg,
    SparkJson,
    Stager,
    open_stager,
)
from ingest_rows import RowFile, make_lines, sql_values, write_files
from ingest_site import DATABASE, Site, full_name, open_site
from load import KEY, Load, LoadGenerator, Sample, running_load
from moraine.ingest.store import WriterStore
from moraine.ingest.writing.service import BatchWriter
from moraine.ledger.pools import open_pool
from moraine.settings import get_settings
from report import Report, at_least, at_most
from resources import PeakMemory
from streams import stream

ROWS, ROUNDS, COMMITS = 1_000_000, 3, 2000
WARM_UPS, WARM_UP_FILES = 2, 3
CLIENTS = (1, 16, 128)
TINY_ROWS, TINY_SECONDS = 10, 8.0
BARE_ROWS, BARE_COMMITS = 100, 15
STREAMS = 16
PARTS = ("bulk", "streams", "tiny", "commits")
ENDS = 50
"""How many of the first commits are compared with as many of the last."""
HERE = "this process"
console = Console()


AIMS = {
    "rows_vs_spark_json": at_least(
        1.2,
        "Both parse on all cores. Ours also checks what Spark's takes silently, and its Parquet is "
        "written by pyarrow in Python workers, which share the cores with Spark itself.",
    ),
    "rows_vs_parquet_floor": at_least(
        0.7,
        "Parsing the JSON, which the floor does not do; the Parquet that both write is the rest.",
    ),
    "tiny_ack_vs_bare_commit": at_most(
        3,
        "A request that just misses a batch waits for that one and then for its own: one and a "
        "half batches at the median, each with a Spark job and a commit.",
    ),
    "commit_after_2000_vs_first_50": at_most(
        1.5,
        "Every commit reads and writes the metadata with its snapshots, and the list of manifests.",
    ),
}


def main() -> None:
    arguments = _parse_arguments()
    # Who ends it this way wants the stack gone as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report = Report("ingest", f"Ingest of {arguments.rows:,} rows, and of few")
    report.figure("load_at_start", [os.getloadavg()[0]])
    with tempfile.TemporaryDirectory(prefix="moraine-bench-") as home:
        folder = Path(home)
        files = write_files(folder / "rows", arguments.rows)
        size = sum(file.size for file in files)
        console.print(
            f"{arguments.rows:,} rows in {len(files)} files, {size / arguments.rows:.0f} bytes each"
        )
        report.figure("bytes_per_row", [size / arguments.rows])
        with open_site(folder) as site, open_stager(site) as stager:
            logging.disable(logging.WARNING)
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
            ratios = Benchmark(site, stager, report, files, arguments).run()
    report.ratios(ratios, AIMS)
    report.finish()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--commits", type=int, default=COMMITS, help="To one table")
    parser.add_argument("--seconds", type=float, default=TINY_SECONDS, help="Of tiny requests")
    parser.add_argument("--streams", type=int, default=STREAMS, help="Large bodies at once")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="Leave the others out"
    )
    return parser.parse_args()


class Benchmark:
    def __init__(
        self,
        site: Site,
        stager: Stager,
        report: Report,
        files: Sequence[RowFile],
        arguments: argparse.Namespace,
    ) -> None:
        self._site = site
        self._stager = stager
        self._report = report
        self._files = files
        self._arguments = arguments
        self._rounds: int = arguments.rounds

    def run(self) -> dict[str, float]:
        ratios: dict[str, float] = {}
        with self._site.writer():
            if "bulk" in self._arguments.only:
                ratios |= self._compete()
            with self._site.api() as api:
                # Before anything else makes the API's memory grow.
                if "streams" in self._arguments.only:
                    self._stream(partial(PeakMemory, api))
                if "tiny" in self._arguments.only:
                    ratios |= self._send_tiny()
        if "commits" in self._arguments.only:
            ratios |= self._commit_often()
        return ratios

    def _compete(self) -> dict[str, float]:
        moraine, floor = Moraine(self._site, self._stager), ParquetFloor(self._site)
        contestants: list[Contestant] = [
            moraine,
            SparkJson(self._site),
            PyIceberg(self._site),
            floor,
        ]
        console.print("bulk: making the Parquet of the floor")
        floor.prepare(self._files)
        for number in range(WARM_UPS):
            console.print(f"bulk: warming up, {number + 1} of {WARM_UPS}")
            for one in contestants:
                self._write(one, self._files[:WARM_UP_FILES], defaultdict(list))
        rates: dict[str, list[float]] = defaultdict(list)
        used: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        moraine.committing.clear()
        rows = sum(file.rows for file in self._files)
        for number in range(self._rounds):
            shift = number % len(contestants)
            for one in contestants[shift:] + contestants[:shift]:
                rates[one.name].append(rows / self._write(one, self._files, used[one.name]))
            told = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
            console.print(f"bulk: round {number + 1} of {self._rounds}: rows/s: {told}")
        for name, values in rates.items():
            self._report.figure(f"{name}_rows_per_s", values)
        self._report.figure("moraine_commits_s", moraine.committing)
        for name, parts in used.items():
            if name == moraine.name:
                del parts[HERE]  # it staged the bodies, before the clock ran
            self._report.note(f"{name}: seconds of processor: {_listed(parts)}.")
        ours = median(rates[moraine.name])
        return {
            f"rows_vs_{name}": ours / median(values)
            for name, values in rates.items()
            if name != moraine.name
        }

    def _write(
        self, contestant: Contestant, files: Sequence[RowFile], used: dict[str, list[float]]
    ) -> float:
        with self._site.table(contestant.name) as table:
            with self._processors_used(used):
                seconds = contestant.write(files, table)
            found = self._site.rows_in(table)
            if found != (rows := sum(file.rows for file in files)):
                raise RuntimeError(f"{contestant.name} wrote {found} rows of {rows}.")
            return seconds

    def _stream(self, memory: Callable[[], PeakMemory]) -> None:
        """Large bodies through the REST door, many at once."""
        files = [
            self._files[number % len(self._files)] for number in range(self._arguments.streams)
        ]
        rows = sum(file.rows for file in files)
        rates, before, peaks = [], [], []
        for number in range(self._rounds):
            with self._site.table("streams") as table:
                requests = [
                    (self._site.http_head(table, file.size, str(uuid4())), file.path)
                    for file in files
                ]
                with memory() as api:
                    done = stream(self._site.api_port, requests)
            rates.append(rows / done.seconds)
            before.append(api.before / (1 << 20))
            peaks.append(api.peak / (1 << 20))
            console.print(
                f"streams: round {number + 1} of {self._rounds}: {len(files)} clients, "
                f"{rates[-1]:,.0f} rows/s, API {before[-1]:.0f} MiB before, {peaks[-1]:.0f} at most"
            )
        self._report.figure("rest_rows_per_s", rates)
        self._report.figure("api_rss_before_mib", before)
        self._report.figure("api_rss_peak_mib", peaks)

    def _send_tiny(self) -> dict[str, float]:
        """Requests of few rows; beside them the same number of bare commits by Spark."""
        body = b"".join(make_lines(TINY_ROWS)).decode()
        seconds = self._arguments.seconds
        figures: dict[str, list[float]] = defaultdict(list)
        with (
            running_load() as generator,
            self._site.table("tiny") as table,
            self._site.table("bare") as bare,
        ):
            request = self._site.http_head(table, len(body.encode()), KEY) + body
            load = partial(self._load, generator, request)
            console.print("tiny: warming up")
            load(max(CLIENTS), min(5.0, seconds))
            load(1, min(2.0, seconds))
            self._commit_bare(bare)
            for number in range(self._rounds):
                figures["bare_commit_ms"] += self._commit_bare(bare)
                for clients in CLIENTS[:: -1 if number % 2 else 1]:
                    sample = load(clients, seconds)
                    figures[f"tiny_{clients}_p50_ms"].append(sample.p50)
                    figures[f"tiny_{clients}_p99_ms"].append(sample.p99)
                    figures[f"tiny_{clients}_per_s"].append(sample.per_second)
                told = ", ".join(
                    f"{clients} clients {figures[f'tiny_{clients}_p50_ms'][-1]:.0f}"
                    for clients in CLIENTS
                )
                bare_ms = median(figures["bare_commit_ms"][-BARE_COMMITS:])
                console.print(
                    f"tiny: round {number + 1} of {self._rounds}: p50 in ms: {told}; "
                    f"a bare commit {bare_ms:.0f}"
                )
        for name, values in figures.items():
            self._report.figure(name, values)
        ratio = median(figures["tiny_16_p50_ms"]) / median(figures["bare_commit_ms"])
        return {"tiny_ack_vs_bare_commit": ratio}

    def _load(self, generator: LoadGenerator, request: str, clients: int, seconds: float) -> Sample:
        return generator.put(Load(self._site.api_port, [request] * clients, seconds))

    def _commit_bare(self, table: str) -> list[float]:
        source = f"range(0, {BARE_ROWS}, 1, 1)"
        statement = f"INSERT INTO {full_name(table)} SELECT {sql_values('id')} FROM {source}"
        return [
            1000 * _timed(partial(self._site.spark.sql, statement)) for _ in range(BARE_COMMITS)
        ]

    def _commit_often(self) -> dict[str, float]:
        """One request after the other to one table, each with a commit of its own."""
        count = self._arguments.commits
        body = b"".join(make_lines(TINY_ROWS))
        with self._batch_writer() as batches:

            def commit(table: str) -> float:
                self._stager.stage_small(body, table)
                return 1000 * _timed(partial(batches.write, DATABASE, table))

            with self._site.table("warm_up") as table:
                for _ in range(min(ENDS, count)):
                    commit(table)
            with self._site.table("often") as table:
                times = []
                for number in range(1, count + 1):
                    times.append(commit(table))
                    if number % 200 == 0:
                        last = median(times[-ENDS:])
                        console.print(f"commits: {number:,} of {count:,}: {last:.0f} ms each")
                if self._site.rows_in(table) != count * TINY_ROWS:
                    raise RuntimeError(f"The table has {self._site.rows_in(table)} rows.")
                self._report_shape(table)
        ends = min(ENDS, max(1, count // 4))
        self._report.figure("commit_first_ms", times[:ends])
        self._report.figure("commit_last_ms", times[-ends:])
        self._report.figure("commit_slowest_ms", [max(times)])
        return {"commit_after_2000_vs_first_50": median(times[-ends:]) / median(times[:ends])}

    @contextmanager
    def _batch_writer(self) -> Iterator[BatchWriter]:
        ingest = get_settings().ingest
        with open_pool(self._site.ledger_url) as pool:
            ledger = WriterStore(pool, "bench", lease=ingest.writer.lease, lifetime=ingest.lifetime)
            yield BatchWriter(ingest, ledger, self._site.tables, lambda: self._site.spark)

    def _report_shape(self, table: str) -> None:
        """What a table looks like after many commits."""
        loaded = self._site.tables.load(DATABASE, table)
        snapshot = loaded.current_snapshot()
        assert snapshot is not None
        metadata = Path(unquote(urlsplit(loaded.metadata_location).path))
        for name, value in (
            ("snapshots", len(loaded.metadata.snapshots)),
            ("metadata_kib", metadata.stat().st_size / 1024),
            ("manifests", len(snapshot.manifests(loaded.io))),
            ("data_files", int(snapshot.summary["total-data-files"] or 0)),
        ):
            self._report.figure(f"commits_{name}", [value])

    @contextmanager
    def _processors_used(self, used: dict[str, list[float]]) -> Iterator[None]:
        before = {**self._site.cpu_seconds(), HERE: time.process_time()}
        yield
        after = {**self._site.cpu_seconds(), HERE: time.process_time()}
        for part, seconds in after.items():
            used[part].append(seconds - before[part])


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _listed(parts: dict[str, list[float]]) -> str:
    used = {part: median(values) for part, values in parts.items()}
    return ", ".join(f"{part} {seconds:.1f}" for part, seconds in used.items() if seconds >= 0.05)


if __name__ == "__main__":
    main()
