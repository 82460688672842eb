"""`moraine` on the command line."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from moraine import log
from moraine.display import follow_progress, history_table, result_tables
from moraine.errors import MoraineError
from moraine.local.commands import app as local_app
from moraine.local.stack import use_environment_of_running_stack

app = typer.Typer(
    help="Moraine: heavy work for Apache Iceberg catalogs, done once whatever crashes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
tasks_app = typer.Typer(help="Look at tasks and steer them.", no_args_is_help=True)
tables_app = typer.Typer(
    help="Make tables for ingest; look at tables that are being dropped.", no_args_is_help=True
)
ledger_app = typer.Typer(help="Care for the ledger's database.", no_args_is_help=True)
app.add_typer(local_app)
app.add_typer(tasks_app, name="tasks")
app.add_typer(tables_app, name="tables")
app.add_typer(ledger_app, name="ledger")

out = Console()
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TaskId = Annotated[str, typer.Argument(help="The task's id.")]
Catalog = Annotated[str, typer.Argument(help="The catalog, as the settings name it.")]
TableName = Annotated[str, typer.Argument(help="NAMESPACE.TABLE; levels are separated by dots.")]


def main() -> None:
    """Errors that Moraine raises on purpose are one sentence; anything else is a bug."""
    log.configure(level=30)
    try:
        app()
    except MoraineError as error:
        Console(stderr=True).print(str(error), style="red", highlight=False, markup=False)
        if error.details:
            Console(stderr=True).print(error.details, style="dim", highlight=False, markup=False)
        sys.exit(1)


# --- Work -----------------------------------------------------------------------------------


@app.command()
def demo() -> None:
    """Purge a real table on the embedded stack, from HTTP to Spark and back."""
    from moraine.local.demo import run

    run(out)


@app.command()
def purge(
    catalog: Catalog,
    table: TableName,
    dry_run: Annotated[bool, typer.Option(help="List the files and delete nothing.")] = False,
    drop: Annotated[
        bool, typer.Option(help="Drop the table from the catalog when its files are gone.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the end and show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Purge a table: delete every file of it, and show that none is left."""
    namespace, name = _split(table)
    client = _client()
    properties = {"dryRun": "true"} if dry_run else {}
    if drop:
        properties["dropTable"] = "true"
    task_id = client.purge(catalog, namespace, name, **properties)["delegation_task_id"]
    if wait or dry_run:
        _follow(client, task_id, quiet=as_json)
    task = client.task(task_id)
    if as_json:
        _print_json(task)
    else:
        _show_outcome(task)
    if task["status"] == "FAILED_TERMINAL":
        raise typer.Exit(1)


@tasks_app.command("list")
def list_tasks(
    status: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    table: Annotated[str | None, typer.Option(help="Only CATALOG.NAMESPACE.TABLE.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    as_json: Json = False,
) -> None:
    """List tasks, newest first."""
    page = _client().tasks(**_given(status=status, table=table, limit=limit))
    if as_json:
        _print_json(page)
        return
    shown = Table("task", "table", "state", "attempt", "received", "result")
    for task in page["tasks"]:
        shown.add_row(
            task["delegation_task_id"],
            task["subject"],
            task["status"],
            str(task["attempt_count"]),
            task["received_timestamp"][:19].replace("T", " "),
            task["result_summary"] or "",
        )
    out.print(shown)


@tasks_app.command("show")
def show_task(
    task_id: TaskId,
    follow: Annotated[bool, typer.Option(help="Wait for the end and show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Show one task with its history, version by version."""
    client = _client()
    if follow:
        _follow(client, task_id, quiet=as_json)
    task = client.task(task_id)
    if as_json:
        _print_json(task)
        return
    _show_outcome(task)
    out.print(history_table(task))


@tasks_app.command("cancel")
def cancel_task(task_id: TaskId, as_json: Json = False) -> None:
    """Cancel a task: at once if it waits, at its next heartbeat if it runs."""
    _show_steered(_client().call("POST", f"/v1/tasks/{task_id}/cancel"), as_json)


@tasks_app.command("retry")
def retry_task(task_id: TaskId, as_json: Json = False) -> None:
    """Re-drive a failed task, or bring a scheduled retry forward."""
    _show_steered(_client().call("POST", f"/v1/tasks/{task_id}/retry"), as_json)


@tables_app.command("dropped")
def list_dropped(as_json: Json = False) -> None:
    """List the tables that the gateway hides because they are being purged and dropped."""
    found = _client().call("GET", "/v1/tombstones")
    if as_json:
        _print_json(found)
        return
    shown = Table("catalog", "table", "hidden since", "task")
    for tombstone in found["tombstones"]:
        shown.add_row(
            tombstone["catalog_name"],
            _whole_name(tombstone),
            tombstone["hidden_since"][:19].replace("T", " "),
            tombstone["delegation_task_id"],
        )
    out.print(shown)


@tables_app.command("undrop")
def undrop_table(catalog: Catalog, table: TableName, as_json: Json = False) -> None:
    """Bring a table back whose purge has ended and has deleted nothing."""
    client = _client()
    namespace, name = _split(table)
    wanted = (catalog, namespace, name)
    for tombstone in client.call("GET", "/v1/tombstones")["tombstones"]:
        if wanted == (
            tombstone["catalog_name"],
            tombstone["namespace_levels"],
            tombstone["table_name"],
        ):
            task_id = tombstone["delegation_task_id"]
            lifted = client.call("POST", f"/v1/tombstones/{task_id}/lift")
            break
    else:
        raise MoraineError(f"No table {table} of {catalog} is being dropped.")
    if as_json:
        _print_json(lifted)
    else:
        out.print(f"{catalog}.{table} is there again.", highlight=False)


@tables_app.command("create")
def create_table(
    table: TableName,
    column: Annotated[
        list[str],
        typer.Option(help="NAME TYPE, as in 'id long' or 'embedding vector(384)'; repeat it."),
    ],
    as_json: Json = False,
) -> None:
    """Make a table with typed columns, for ingest to write to."""
    namespace, name = _split(table)
    columns = [_column(words) for words in column]
    body = {"database": ".".join(namespace), "table": name, "columns": columns}
    _show_columns(_ingest_client().call("POST", "/v1/tables", json=body), as_json)


@tables_app.command("columns")
def list_columns(table: TableName, as_json: Json = False) -> None:
    """List the columns that ingest coerces lines to."""
    namespace, name = _split(table)
    path = f"/v1/tables/{'.'.join(namespace)}/{name}"
    _show_columns(_ingest_client().call("GET", path), as_json)


@tables_app.command("promote")
def promote_field(
    table: TableName,
    field: Annotated[str, typer.Argument(help="The field, as lines have it.")],
    type: Annotated[str, typer.Argument(help="bool, int, long, real, string or timestamp.")],
    column: Annotated[str, typer.Option(help="The new column; by default FIELD_TYPE.")] = "",
    as_json: Json = False,
) -> None:
    """Give a field a typed column from now on; what was written before stays as it is."""
    namespace, name = _split(table)
    path = f"/v1/tables/{'.'.join(namespace)}/{name}/promotions"
    body = {"field": field, "type": type, "column": column}
    made = _ingest_client().call("POST", path, json=body)
    if as_json:
        _print_json(made)
        return
    out.print(f"{table}.{made['column']} takes {field} from now on. Read both with:")
    out.print(f"  {made['read_as']} AS {field}", highlight=False, markup=False)


@app.command()
def ingest(
    file: Annotated[Path, typer.Argument(help="NDJSON: one object per line.", exists=True)],
    table: TableName,
    key: Annotated[
        str | None, typer.Option(help="The idempotency key; by default one of the content.")
    ] = None,
    create: Annotated[bool, typer.Option(help="Make the table if it is not there.")] = False,
    evolve: Annotated[bool, typer.Option(help="Make columns for unknown fields.")] = True,
    as_json: Json = False,
) -> None:
    """Write the lines of a file to a table: all of them, once, or none."""
    namespace, name = _split(table)
    answer = _ingest_client().send(
        ".".join(namespace), name, file, key=key, create=create, evolve=evolve
    )
    if as_json:
        _print_json(answer)
        return
    words = "were there already" if answer["replayed"] else "written"
    out.print(
        f"{answer['rows_ingested']} rows {words}, in snapshot {answer['snapshot_id']}.",
        highlight=False,
    )


# --- The ledger and the API -----------------------------------------------------------------


@ledger_app.command("upgrade")
def upgrade_ledger() -> None:
    """Bring the ledger's schema to the newest version."""
    from moraine.migrations import upgrade

    upgrade(_settings().ledger.url.get_secret_value())
    out.print("The ledger is up to date.")


@ledger_app.command("cleanup")
def clean_ledger(
    older_than_days: Annotated[
        int | None, typer.Option(min=0, help="Instead of delegation.task.retention.")
    ] = None,
) -> None:
    """Remove finished tasks past their retention."""
    from moraine.runtime import forget_expired_keys, forget_ingested_keys, open_service

    settings = _settings()
    if older_than_days is not None:
        kept = settings.delegation.task.model_copy(
            update={"retention": timedelta(days=older_than_days)}
        )
        delegation = settings.delegation.model_copy(update={"task": kept})
        settings = settings.model_copy(update={"delegation": delegation})
    with open_service(settings) as service:
        out.print(f"{service.cleanup()} finished tasks removed.")
    url = settings.ledger.url.get_secret_value()
    out.print(f"{forget_expired_keys(url)} expired keys removed.")
    out.print(f"{forget_ingested_keys(url)} expired ingest keys removed.")


class Contract(StrEnum):
    DELEGATION = "delegation"
    INGEST = "ingest"


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="Instead of api.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Instead of api.port.")] = None,
    openapi: Annotated[
        Contract | None, typer.Option(help="Print that OpenAPI document and exit.")
    ] = None,
) -> None:
    """Serve the API alone, without Airflow's web server."""
    from moraine.api.app import create_standalone_app, openapi_document
    from moraine.ingest.app import ingest_document

    if openapi:
        document = ingest_document() if openapi is Contract.INGEST else openapi_document()
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return
    import uvicorn

    log.configure()
    settings = _settings()
    uvicorn.run(
        create_standalone_app(settings),
        host=host or settings.api.host,
        port=port or settings.api.port,
        log_config=None,
        access_log=False,  # it would be a twentieth of what a read through the gateway costs
        server_header=False,  # the gateway's answers have that of the catalog
    )


# --- Helpers --------------------------------------------------------------------------------


def _settings() -> Any:
    """The settings at hand; those of the embedded stack if nothing else is configured."""
    from pydantic import ValidationError

    from moraine.settings import get_settings

    if "MORAINE_CONFIG" not in os.environ and not Path("moraine.toml").exists():
        use_environment_of_running_stack()
    try:
        return get_settings()
    except (ValidationError, ValueError, OSError) as error:
        raise MoraineError(f"The settings are not usable: {error}") from error


def _client() -> Any:
    from moraine.api.client import DelegationClient

    return DelegationClient(_settings())


def _ingest_client() -> Any:
    from moraine.ingest.client import IngestClient

    return IngestClient(_settings())


def _column(words: str) -> dict[str, str]:
    name, _, type = words.strip().partition(" ")
    if not type.strip():
        raise typer.BadParameter(f"write {words!r} as 'NAME TYPE'", param_hint="--column")
    return {"name": name, "type": type.strip()}


def _show_columns(table: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(table)
        return
    shown = Table("column", "type", title=f"{table['database']}.{table['table']}")
    for column in table["columns"]:
        shown.add_row(column["name"], column["type"])
    out.print(shown)


def _split(table: str) -> tuple[list[str], str]:
    *namespace, name = table.split(".")
    if not namespace:
        raise typer.BadParameter("write it as NAMESPACE.TABLE", param_hint="TABLE")
    return namespace, name


def _whole_name(tombstone: dict[str, Any]) -> str:
    return ".".join([*tombstone["namespace_levels"], tombstone["table_name"]])


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _follow(client: Any, task_id: str, *, quiet: bool) -> None:
    with follow_progress(out, quiet=quiet) as show:
        for event, data in client.events(task_id):
            show(event, data)


def _show_outcome(task: dict[str, Any]) -> None:
    out.print(f"[bold]{task['subject']}[/bold]  {task['delegation_task_id']}  {task['status']}")
    if task["result_summary"]:
        out.print(task["result_summary"], highlight=False)
    result = task["execution_result"] or {}
    for table in result_tables(result):
        out.print(table)
    if inventory := result.get("inventory"):
        out.print(f"Every file by name: {inventory}", highlight=False)


def _show_steered(task: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(task)
    else:
        out.print(f"{task['delegation_task_id']} is {task['status']}.")
