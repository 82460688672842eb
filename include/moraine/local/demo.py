"""The demo on the embedded stack: a table that is purged from HTTP to Spark and back, one that is
made and dropped through the gateway, and one that JSON lines are written to."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
import uuid6
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from rich.console import Console

from moraine.catalog.client import RestCatalog
from moraine.client.adapter import idempotency_key
from moraine.client.catalog import connect
from moraine.client.delegation import DelegationClient
from moraine.display import follow_progress
from moraine.gateway.model import GATEWAY_PATH
from moraine.iceberg.config import read_lifetime
from moraine.local.commands import ProgressDisplay, short_path
from moraine.local.demo_ingest import IngestDemo, say
from moraine.local.stack import Stack
from moraine.operations.purge.model import Phase
from moraine.settings import get_settings
from moraine.spark import session
from moraine.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG, NAMESPACE = "demo", "shop"
_POLL_SECONDS = 0.2
_KINDS = {
    "data file": r"^data/.*(?<!-deletes)\.parquet$",
    "delete file": r"^data/.*-deletes\.parquet$",
    "manifest": r"^metadata/(?!snap-).*\.avro$",
    "manifest list": r"^metadata/snap-.*\.avro$",
    "metadata file": r"^metadata/.*\.metadata\.json$",
}
_NEXT = """\
Next:
  make up         keeps this stack running: Airflow's page, the API, the gateway
  README.md       the same requests with curl, from "The API by example" on
  docs/README.md  how it works, and how to run it on machines of your own"""


def run(console: Console) -> None:
    """Stops at the end what it started, and leaves alone what was running before."""
    stack = Stack.configured()
    was_running = stack.is_running()
    started = time.monotonic()
    console.print("[bold]Moraine on this machine: a purge, the gateway and ingest[/bold]")
    try:
        _step(console, 1, "Start PostgreSQL, an Iceberg REST catalog, Spark and Airflow here")
        with ProgressDisplay(console) as report:
            stack.up(on_event=report)
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        _purge_a_table(console, stack)
        _use_the_gateway(console, stack)
        _step(console, 5, "Ingest: JSON lines become rows, once")
        IngestDemo(console, stack).run()
    finally:
        if not was_running:
            with console.status("stopping what was started"):
                stack.down()
    kept = short_path(stack.home)
    stopped = f"The stack is stopped; its data is in {kept}."
    end = "The stack was running before and goes on." if was_running else stopped
    console.print(f"\nDone in {time.monotonic() - started:.0f} s. {end}\n{_NEXT}", highlight=False)


def _purge_a_table(console: Console, stack: Stack) -> None:
    table = f"orders_{int(time.time())}"
    name = f"{CATALOG}.{NAMESPACE}.{table}"
    folder = stack.home / "warehouse" / NAMESPACE / table
    client = DelegationClient(get_settings())

    _step(console, 2, f"Write the table {name} with Spark")
    with console.status("three inserts, a DELETE and an UPDATE that write row-level deletes"):
        spark = session.connect(stack.spark.client_url)
        write_orders(spark, name)
        rows = spark.table(name).count()
        snapshots = spark.table(f"{name}.snapshots").count()
        spark.stop()
    say(console, f"{rows:,} rows in {counted(snapshots, 'snapshot')}, some deleted or updated.")
    say(console, f"On disk: {_kinds(folder)}.")

    _step(console, 3, "Purge it: POST /delegation-service/api/v1/tasks/execute/synchronous")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.purge, CATALOG, [NAMESPACE], table, wait=True)
        task_id = _find_task(client, name, answer)
        with follow_progress(console) as show:
            for event, data in client.events(task_id):
                show(event, data)
    told = answer.result()
    say(console, f"{told['status']}: {told['message']}")
    say(console, f"In this order: {_phases(told['execution_result'])}.")
    left = _files(folder)
    say(console, f"On disk now: {counted(len(left), 'file')}. The catalog can drop its entry.")
    RestCatalog(get_settings().catalogs[CATALOG]).drop_table([NAMESPACE], table)
    say(console, f"The ledger has every step of task {task_id}:")
    say(console, f"  {_history(client.task(task_id))}.")
    if left:
        raise SystemExit("Files are left: this is a bug.")


def _use_the_gateway(console: Console, stack: Stack) -> None:
    uri = f"{get_settings().airflow.url}{GATEWAY_PATH}/{CATALOG}"
    _step(console, 4, f"The same catalog through the gateway: {uri}")
    ca = get_settings().airflow.tls.ca
    trusted: dict[str, Any] = {"ssl": {"cabundle": str(ca)}} if ca else {}
    catalog = connect(uri, **trusted)
    answer = requests.get(f"{uri}/v1/config", timeout=60, verify=str(ca) if ca else True)
    lifetime = read_lifetime(answer.json())
    table, key = f"baskets_{int(time.time())}", str(uuid6.uuid7())
    schema = Schema(NestedField(1, "id", LongType()))
    with idempotency_key(key):
        uuids = [
            catalog.create_table((NAMESPACE, table), schema).metadata.table_uuid for _ in range(2)
        ]
    say(console, f"Every change may carry an Idempotency-Key, which is good for {lifetime}.")
    say(console, f"{NAMESPACE}.{table}, created twice with one key: one table, {uuids[0]}.")
    with console.status("DELETE …?purgeRequested=true: a delegated purge, then a drop"):
        catalog.purge_table((NAMESPACE, table))
    folder = stack.home / "warehouse" / NAMESPACE / table
    left, there = _files(folder), catalog.table_exists((NAMESPACE, table))
    entry = "still there" if there else "gone"
    words = f"{counted(len(left), 'file')} left, its entry in the catalog is {entry}"
    say(console, f"DELETE …?purgeRequested=true purges it, then drops it: {words}.")
    if left or there or len(set(uuids)) > 1:
        raise SystemExit("That is not as it should be: this is a bug.")


def write_orders(spark: SparkSession, table: str) -> None:
    """A format 2 table with several snapshots, row-level deletes and statistics."""
    namespace = table.rsplit(".", 1)[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    spark.sql(
        f"""
        CREATE TABLE {table} (id BIGINT, customer STRING, amount DECIMAL(10, 2), day DATE)
        USING iceberg PARTITIONED BY (days(day))
        TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read',
                       'write.update.mode' = 'merge-on-read')
        """
    )
    for number in range(3):
        spark.sql(
            f"""
            INSERT INTO {table}
            SELECT id, concat('customer ', id % 7), id * 1.25,
                   date_add(DATE'2026-01-01', CAST(id % 4 AS INT))
            FROM range({number * 1000}, {number * 1000 + 1000})
            """  # noqa: S608 - the caller's own table
        )
    spark.sql(f"DELETE FROM {table} WHERE id % 5 = 0")  # noqa: S608
    spark.sql(f"UPDATE {table} SET amount = 0 WHERE id % 7 = 0")  # noqa: S608


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


def _kinds(folder: Path) -> str:
    """`12 data files, 8 delete files, …`."""
    names = [str(file.relative_to(folder)) for file in _files(folder)]
    return ", ".join(
        counted(sum(bool(re.search(pattern, name)) for name in names), kind)
        for kind, pattern in _KINDS.items()
    )


def _phases(result: dict[str, Any]) -> str:
    """`content 20, manifests 9, …`: how many files each phase deleted."""
    done = result["by_phase"]
    return ", ".join(
        f"{phase.replace('_', ' ')} {done[phase]['deleted']}" for phase in Phase if phase in done
    )


def _history(task: dict[str, Any]) -> str:
    """`SUBMITTED, RUNNING after 0.5 s, …`: the states of a task and when it reached them."""
    moments = [(row["ledger_status"], datetime.fromisoformat(row["at"])) for row in task["history"]]
    (first, began), *later = moments
    return ", ".join(
        [first, *(f"{state} after {(at - began).total_seconds():.1f} s" for state, at in later)]
    )
