"""What it costs a purge to spare the files of 10,000 other tables.

Side by side on one catalog: the index in the ledger when it is built, the index when it is up to
date, and what a purge would do without it, which is to load every table each time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from statistics import median

import pyarrow as pa
import requests
from rich.console import Console

from moraine.catalog.client import RestCatalog
from moraine.ledger.pools import open_pool
from moraine.local.commands import ProgressDisplay
from moraine.local.stack import Stack
from moraine.neighbours.check import refuse_shared
from moraine.neighbours.model import TableName
from moraine.neighbours.store import SurveyStore
from moraine.neighbours.survey import Surveyor
from moraine.settings import CatalogSettings
from moraine.storage.locations import Roots
from report import Report

TABLES, NAMESPACES, RUNS, LOOKS = 10_000, 20, 5, 200
_AGE = timedelta(hours=1)
_SCHEMA = {
    "type": "struct",
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
console = Console()


def main() -> None:
    folder = tempfile.TemporaryDirectory(prefix="moraine-bench-")
    with folder as home, Stack.ephemeral(Path(home)) as stack:
        with ProgressDisplay(console) as progress:
            stack.up({"postgres", "catalog"}, on_event=progress)
        make_tables(stack.catalog.url)
        measure(stack)


def make_tables(url: str) -> None:
    for number in range(NAMESPACES):
        _post(f"{url}/v1/namespaces", {"namespace": [f"n{number}"]})
    console.print(f"making {TABLES} tables")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: _make_table(url, name), _names()))


def measure(stack: Stack) -> None:
    warehouse = stack.home / "warehouse"
    settings = CatalogSettings(uri=stack.catalog.url, allowed_locations=[str(warehouse)])
    own = next(_names())
    roots = Roots.of([f"{warehouse}/{own.namespace[0]}/{own.name}"])
    paths = pa.array([f"file:{warehouse}/{own.namespace[0]}/{own.name}/data/a.parquet"])
    with open_pool(stack.environment()["MORAINE_LEDGER__URL"]) as pool:
        catalog = RestCatalog(settings)
        surveyor = Surveyor(
            catalog,
            settings,
            Roots.of(settings.allowed_locations),
            SurveyStore(pool, "demo", "demo"),
            lambda _: False,
        )
        built = _seconds(lambda: surveyor.survey(max_age=_AGE, looks=LOOKS))
        kept = [_seconds(lambda: surveyor.survey(max_age=_AGE, looks=LOOKS)) for _ in range(RUNS)]
        found = [
            _seconds(lambda: refuse_shared(surveyor, own, roots, lambda: [paths]))
            for _ in range(RUNS)
        ]
    scans = [_seconds(lambda: _load_all(catalog)) for _ in range(2)]
    report = Report("neighbours", f"Sparing the files of {TABLES:,} other tables")
    report.figure("index_built_s", [built])
    report.figure("survey_before_a_purge_s", kept)
    report.figure("tables_in_the_same_folders_found_s", found)
    report.figure("load_every_table_s", scans)
    each = median(kept) + median(found)
    report.ratio("purge_check_vs_loading_all", each / median(scans), aim="0.1 or less")
    report.note(f"The survey lists all tables and looks again at {LOOKS} of them.")
    report.finish()


def _names() -> Iterator[TableName]:
    for number in range(TABLES):
        yield TableName((f"n{number % NAMESPACES}",), f"t{number}")


def _load_all(catalog: RestCatalog) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: catalog.load_table(n.namespace, n.name, vend=False), _names()))


def _make_table(url: str, name: TableName) -> None:
    _post(f"{url}/v1/namespaces/{name.namespace[0]}/tables", {"name": name.name, "schema": _SCHEMA})


def _post(url: str, body: dict[str, object]) -> None:
    requests.post(url, json=body, timeout=60).raise_for_status()


def _seconds(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


if __name__ == "__main__":
    main()
