"""The demo: one real table, purged from HTTP to Spark and back, on the embedded stack; another one
that is made and dropped through the gateway; and one that lines of JSON are written to."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uuid6
from rich.console import Console
from rich.table import Table

from moraine.api.app import GATEWAY_PATH
from moraine.api.client import DelegationClient
from moraine.catalog.client import RestCatalog
from moraine.catalog.iceberg import IcebergCatalog
from moraine.display import follow_progress, history_table, result_tables
from moraine.local.demo_ingest import IngestDemo
from moraine.local.progress import ProgressDisplay
from moraine.local.samples import write_orders
from moraine.local.stack import Stack
from moraine.settings import get_settings
from moraine.spark import connect

CATALOG, NAMESPACE = "demo", "shop"
_POLL_SECONDS = 0.2
_KINDS = {
    "data files": r"^data/.*(?<!-deletes)\.parquet$",
    "row-level deletes": r"^data/.*-deletes\.parquet$",
    "manifests": r"^metadata/(?!snap-).*\.avro$",
    "manifest lists": r"^metadata/snap-.*\.avro$",
    "metadata files": r"^metadata/.*\.metadata\.json$",
}


def run(console: Console) -> None:
    """Stops at the end what it started, and leaves alone what was running before."""
    stack = Stack.configured()
    was_running = stack.is_running()
    started = time.monotonic()
    console.rule("[bold]Moraine: purge a table, from HTTP to Spark and back")
    try:
        _step(console, 1, "Start PostgreSQL, an Iceberg REST catalog, Spark and Airflow here")
        with ProgressDisplay(console) as report:
            stack.up(on_event=report)
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        _purge_a_table(console, stack)
        _use_the_gateway(console, stack)
        _step(console, 7, "Ingest: lines of JSON become rows, once")
        IngestDemo(console, stack).run()
    finally:
        if was_running:
            console.print("\nThe stack was running before, so it goes on.")
        else:
            with console.status("Stopping what was started"):
                stack.down()
            console.print("\nStopped everything that was started.")
    console.print(
        f"Done in {time.monotonic() - started:.0f} s. `make up` keeps the stack running.",
        highlight=False,
    )


def _purge_a_table(console: Console, stack: Stack) -> None:
    table = f"orders_{int(time.time())}"
    folder = stack.home / "warehouse" / NAMESPACE / table
    client = DelegationClient(get_settings())

    _step(console, 2, f"Write the table {CATALOG}.{NAMESPACE}.{table} through Spark")
    with console.status("three inserts, a DELETE and an UPDATE that write row-level deletes"):
        spark = connect(stack.spark.url)
        write_orders(spark, f"{CATALOG}.{NAMESPACE}.{table}")
        rows = spark.table(f"{CATALOG}.{NAMESPACE}.{table}").count()
        snapshots = spark.table(f"{CATALOG}.{NAMESPACE}.{table}.snapshots").count()
        spark.stop()
    console.print(f"{rows:,} rows in {snapshots} snapshots. Its files on disk:")
    console.print(_files_table(folder))

    _step(console, 3, "Purge it: POST /delegation-service/api/v1/tasks/execute/synchronous")
    payload = client.purge_payload(CATALOG, [NAMESPACE], table)
    console.print_json(json.dumps(payload))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.purge_and_wait, CATALOG, [NAMESPACE], table)
        task_id = _find_task(client, f"{CATALOG}.{NAMESPACE}.{table}", answer)
        with follow_progress(console) as show:
            for event, data in client.events(task_id):
                show(event, data)
    told = answer.result()
    console.print(f"The answer: {told['status']}. {told['message']}", highlight=False)
    for shown in result_tables(told["execution_result"]):
        console.print(shown)

    _step(console, 4, "Look for files that are left")
    left = _files(folder)
    console.print(f"{len(left)} files in {folder.relative_to(stack.home)}.", highlight=False)
    console.print("The catalog can drop its entry now; the demo does that for it.")
    RestCatalog(get_settings().catalogs[CATALOG]).drop_table([NAMESPACE], table)

    _step(console, 5, f"What the ledger says of task {task_id}")
    console.print(history_table(client.task(task_id)))
    if left:
        raise SystemExit("Files are left: this is a bug.")


def _use_the_gateway(console: Console, stack: Stack) -> None:
    uri = f"{get_settings().airflow.url}{GATEWAY_PATH}/{CATALOG}"
    _step(console, 6, f"The same catalog through the gateway: {uri}")
    catalog = IcebergCatalog(uri)
    lifetime = catalog.server_config.key_lifetime
    console.print(f"It understands idempotency keys; each is good for {lifetime}.", highlight=False)
    table, key = f"baskets_{int(time.time())}", str(uuid6.uuid7())
    field = {"id": 1, "name": "id", "type": "long", "required": False}
    schema = {"type": "struct", "schema-id": 0, "fields": [field]}
    uuids = [
        catalog.create_table(NAMESPACE, table, schema, idempotency_key=key).uuid for _ in range(2)
    ]
    console.print(
        f"{NAMESPACE}.{table}, created twice with the key {key}: table {uuids[0]}, and again "
        f"{uuids[1]}.",
        highlight=False,
    )
    with console.status("DELETE …?purgeRequested=true: a delegated purge, then a drop"):
        catalog.drop_table(NAMESPACE, table, purge=True)
    folder = stack.home / "warehouse" / NAMESPACE / table
    left, there = _files(folder), catalog.table_exists(NAMESPACE, table)
    console.print(
        f"Dropped with its files: {len(left)} are left, and the catalog "
        f"{'still has it' if there else 'does not know it any more'}.",
        highlight=False,
    )
    if left or there or len(set(uuids)) > 1:
        raise SystemExit("That is not as it should be: this is a bug.")


def _step(console: Console, number: int, words: str) -> None:
    console.print(f"\n[bold cyan]{number}.[/bold cyan] [bold]{words}[/bold]", highlight=False)


def _find_task(client: DelegationClient, subject: str, answer: Future[dict[str, Any]]) -> str:
    """The id of the task that the waiting request has written; its own answer comes later."""
    while True:
        if tasks := client.tasks(table=subject, limit=1)["tasks"]:
            return str(tasks[0]["delegation_task_id"])
        if answer.done():
            answer.result()
        time.sleep(_POLL_SECONDS)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _files_table(folder: Path) -> Table:
    shown = Table("what", "files", "bytes")
    for kind, pattern in _KINDS.items():
        files = [f for f in _files(folder) if re.search(pattern, str(f.relative_to(folder)))]
        size = sum(file.stat().st_size for file in files)
        shown.add_row(kind, str(len(files)), f"{size:,}")
    return shown
