"""`moraine` on the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from moraine import log
from moraine.display import (
    as_given,
    follow_progress,
    history_table,
    id_column,
    open_console,
    result_tables,
)
from moraine.errors import MoraineError
from moraine.local.commands import app as local_app
from moraine.local.stack import use_environment_of_running_stack
from moraine.words import counted

app = typer.Typer(
    help="Moraine: slow work for Apache Iceberg catalogs, done exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
tasks_app = typer.Typer(help="List, show, cancel and retry tasks.", no_args_is_help=True)
tables_app = typer.Typer(
    help="Create tables for ingest; list tables that are being dropped.", no_args_is_help=True
)
ledger_app = typer.Typer(help="Upgrade and clean the ledger's database.", no_args_is_help=True)
tls_app = typer.Typer(help="Make certificates for a first deployment.", no_args_is_help=True)
app.add_typer(local_app)
app.add_typer(tasks_app, name="tasks")
app.add_typer(tables_app, name="tables")
app.add_typer(ledger_app, name="ledger")
app.add_typer(tls_app, name="tls")

out = open_console()
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TaskId = Annotated[str, typer.Argument(help="The task's id.")]
Catalog = Annotated[str, typer.Argument(help="The catalog, as the settings name it.")]
TableName = Annotated[str, typer.Argument(help="NAMESPACE.TABLE; levels are separated by dots.")]


def main() -> None:
    """Print Moraine's own errors as one sentence. Any other exception is a bug."""
    log.configure(level=30)
    try:
        app()
    except MoraineError as error:
        told = open_console(stderr=True)
        told.print(str(error), style="red", highlight=False, markup=False)
        if error.details:
            told.print(error.details, style="dim", highlight=False, markup=False)
        sys.exit(1)


# --- Work -----------------------------------------------------------------------------------


@app.command()
def demo() -> None:
    """See it work: a purge, the gateway and ingest on the embedded stack."""
    from moraine.local.demo import run

    run(out)


@app.command()
def purge(
    catalog: Catalog,
    table: TableName,
    dry_run: Annotated[bool, typer.Option(help="List the files, delete nothing.")] = False,
    drop: Annotated[
        bool, typer.Option(help="Drop the table from the catalog when its files are gone.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it ends and show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Purge a table: delete all its files, and verify that none is left."""
    namespace, name = _split(table)
    client = _client()
    properties = {"dryRun": "true"} if dry_run else {}
    if drop:
        properties["dropTable"] = "true"
    task_id = client.purge(catalog, namespace, name, **properties)["delegation_task_id"]
    if wait or dry_run:
        _follow(client, task_id, quiet=as_json)
    task = client.task(task_id)
    _show(task, as_json, _show_outcome)
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
    wanted = {"status": status, "table": table, "limit": limit}
    filters = {name: value for name, value in wanted.items() if value is not None}
    _show(_client().tasks(**filters), as_json, _show_tasks)


def _show_tasks(page: dict[str, Any]) -> None:
    shown = Table(id_column("task"), "table", "state", "attempt", "received", "result")
    for task in page["tasks"]:
        shown.add_row(
            task["delegation_task_id"],
            as_given(task["subject"]),
            task["status"],
            str(task["attempt_count"]),
            task["received_timestamp"][:19].replace("T", " "),
            as_given(task["result_summary"] or ""),
        )
    out.print(shown)


@tasks_app.command("show")
def show_task(
    task_id: TaskId,
    follow: Annotated[bool, typer.Option(help="Wait until it ends and show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Show one task with its history, version by version."""
    client = _client()
    if follow:
        _follow(client, task_id, quiet=as_json)
    _show(client.task(task_id), as_json, _show_with_history)


def _show_with_history(task: dict[str, Any]) -> None:
    _show_outcome(task)
    out.print(history_table(task))


@tasks_app.command("cancel")
def cancel_task(task_id: TaskId, as_json: Json = False) -> None:
    """Cancel a task: immediately if it waits, at its next heartbeat if it runs."""
    _show(_client().call("POST", f"/v1/tasks/{task_id}/cancel"), as_json, _show_state)


@tasks_app.command("retry")
def retry_task(task_id: TaskId, as_json: Json = False) -> None:
    """Retry a failed task, or start a scheduled retry now."""
    _show(_client().call("POST", f"/v1/tasks/{task_id}/retry"), as_json, _show_state)


@app.command()
def audit(
    subject: Annotated[str | None, typer.Option(help="Only what this caller asked for.")] = None,
    act: Annotated[
        str | None, typer.Option(help="Only submit, cancel, retry, lift, drop …")
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="Only allowed or refused.")] = None,
    table: Annotated[str | None, typer.Option(help="Only CATALOG.NAMESPACE.TABLE.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    as_json: Json = False,
) -> None:
    """Show who was allowed or refused what, newest first."""
    wanted = {"subject": subject, "act": act, "outcome": outcome, "table": table, "limit": limit}
    _show(_client().call("GET", "/v1/audit", params=wanted), as_json, _show_audit)


def _show_audit(page: dict[str, Any]) -> None:
    shown = Table("at", "caller", "act", "outcome", "table", "from", "reason")
    for entry in page["entries"]:
        cells = (
            entry["at"][:19].replace("T", " "),
            f"{entry['subject'] or 'a stranger'} ({entry['issuer']})",
            entry["act"],
            entry["outcome"],
            entry["table"],
            entry["address"],
            entry["reason"],
        )
        shown.add_row(*map(as_given, cells))
    out.print(shown)


@tables_app.command("dropped")
def list_dropped(as_json: Json = False) -> None:
    """List the tables that the gateway hides because they are being purged and dropped."""
    _show(_client().call("GET", "/v1/tombstones"), as_json, _show_tombstones)


def _show_tombstones(found: dict[str, Any]) -> None:
    shown = Table("catalog", "table", "hidden since", id_column("task"))
    for tombstone in found["tombstones"]:
        shown.add_row(
            as_given(tombstone["catalog_name"]),
            as_given(".".join([*tombstone["namespace_levels"], tombstone["table_name"]])),
            tombstone["hidden_since"][:19].replace("T", " "),
            tombstone["delegation_task_id"],
        )
    out.print(shown)


@tables_app.command("undrop")
def undrop_table(catalog: Catalog, table: TableName, as_json: Json = False) -> None:
    """Restore a table whose purge has ended without deleting anything."""
    client = _client()
    namespace, name = _split(table)
    wanted = {"catalog_name": catalog, "namespace_levels": namespace, "table_name": name}
    for tombstone in client.call("GET", "/v1/tombstones")["tombstones"]:
        if wanted.items() <= tombstone.items():
            break
    else:
        raise MoraineError(f"No table {table} of {catalog} is being dropped.")
    lifted = client.call("POST", f"/v1/tombstones/{tombstone['delegation_task_id']}/lift")
    restored = f"{catalog}.{table} is restored."
    _show(lifted, as_json, lambda _: out.print(restored, highlight=False))


@tables_app.command("create")
def create_table(
    table: TableName,
    column: Annotated[
        list[str],
        typer.Option(help="NAME TYPE, as in 'id long' or 'embedding vector(384)'; repeat it."),
    ],
    as_json: Json = False,
) -> None:
    """Create a table with typed columns, for ingest."""
    namespace, name = _split(table)
    columns = [_column(words) for words in column]
    body = {"database": ".".join(namespace), "table": name, "columns": columns}
    _show(_ingest_client().call("POST", "/v1/tables", json=body), as_json, _show_columns)


@tables_app.command("columns")
def list_columns(table: TableName, as_json: Json = False) -> None:
    """List the columns that ingest coerces lines to."""
    namespace, name = _split(table)
    path = f"/v1/tables/{'.'.join(namespace)}/{name}"
    _show(_ingest_client().call("GET", path), as_json, _show_columns)


@tables_app.command("promote")
def promote_field(
    table: TableName,
    field: Annotated[str, typer.Argument(help="The field's name in the JSON lines.")],
    type: Annotated[str, typer.Argument(help="bool, int, long, real, string or timestamp.")],
    column: Annotated[str, typer.Option(help="The new column; by default FIELD_TYPE.")] = "",
    as_json: Json = False,
) -> None:
    """Give a field a typed column from now on; existing rows stay unchanged."""
    namespace, name = _split(table)
    path = f"/v1/tables/{'.'.join(namespace)}/{name}/promotions"
    body = {"field": field, "type": type, "column": column}

    def show(made: dict[str, Any]) -> None:
        out.print(f"{table}.{made['column']} takes {field} from now on. Read both with:")
        out.print(f"  {made['read_as']} AS {field}", highlight=False, markup=False)

    _show(_ingest_client().call("POST", path, json=body), as_json, show)


@app.command()
def ingest(
    file: Annotated[Path, typer.Argument(help="NDJSON: one object per line.", exists=True)],
    table: TableName,
    key: Annotated[
        str | None, typer.Option(help="The idempotency key; by default a hash of the content.")
    ] = None,
    create: Annotated[bool, typer.Option(help="Create the table if it does not exist.")] = False,
    evolve: Annotated[bool, typer.Option(help="Add columns for unknown fields.")] = True,
    as_json: Json = False,
) -> None:
    """Write the lines of a file to a table: all of them exactly once, or none."""
    namespace, name = _split(table)
    answer = _ingest_client().send(
        ".".join(namespace), name, file, key=key, create=create, evolve=evolve
    )
    _show(answer, as_json, _show_written)


def _show_written(answer: dict[str, Any]) -> None:
    words = "already written by this key" if answer["replayed"] else "written"
    rows, snapshot = counted(answer["rows_ingested"], "row"), answer["snapshot_id"]
    out.print(f"{rows} {words}, in snapshot {snapshot}.", highlight=False)


# --- Login ----------------------------------------------------------------------------------


@app.command()
def login() -> None:
    """Log in at the identity provider of the settings, by a browser on any device."""
    from moraine.client.login import api_url, finish_login, start_login

    settings = _settings()
    client, code = start_login(settings)
    out.print(f"A login for {api_url(settings)} and no other.", highlight=False, markup=False)
    out.print(f"Open {code.verification_uri} and enter the code", highlight=False, markup=False)
    out.print(f"  {code.user_code}", style="bold", highlight=False, markup=False)
    if code.complete_uri:
        out.print(f"or open {code.complete_uri}", highlight=False, markup=False, soft_wrap=True)
    finish_login(settings, client, code)
    out.print("Logged in.")


@app.command()
def logout() -> None:
    """Forget the login, here and at the identity provider."""
    from moraine.client.login import log_out

    out.print(log_out(_settings()), highlight=False)


# --- The ledger and the API -----------------------------------------------------------------


@ledger_app.command("upgrade")
def upgrade_ledger() -> None:
    """Upgrade the ledger's schema to the newest version."""
    from moraine.ledger.grants import grant_executor, role_of
    from moraine.migrations import upgrade

    ledger = _settings().ledger
    upgrade(ledger.address)
    if role := role_of(ledger.executor_url.get_secret_value()):
        grant_executor(ledger.address, role)
    out.print("The ledger is up to date.")


@ledger_app.command("grant-executor")
def grant_to_executors(
    role: Annotated[str, typer.Argument(help="A role of PostgreSQL that exists.")],
) -> None:
    """Let a role do in the ledger what Spark's executors do, and nothing else.

    `moraine ledger upgrade` does this for the role in ledger.executor-url.
    """
    from moraine.ledger.grants import grant_executor

    grant_executor(_settings().ledger.address, role)
    out.print(f"Executors may use the role {role}.", markup=False)


@ledger_app.command("cleanup")
def clean_ledger(
    older_than_days: Annotated[
        int | None, typer.Option(min=0, help="Overrides delegation.task.retention.")
    ] = None,
) -> None:
    """Remove finished tasks after their retention, and expired keys."""
    from moraine.idempotency.cleanup import forget_expired_keys
    from moraine.ingest.processes import forget_ingested_keys
    from moraine.operations.processes import open_service

    settings = _settings()
    if older_than_days is not None:
        kept = settings.delegation.task.model_copy(
            update={"retention": timedelta(days=older_than_days)}
        )
        delegation = settings.delegation.model_copy(update={"task": kept})
        settings = settings.model_copy(update={"delegation": delegation})
    with open_service(settings) as service:
        out.print(f"{counted(service.cleanup(), 'finished task')} removed.")
    url = settings.ledger.address
    out.print(f"{counted(forget_expired_keys(url), 'expired key')} removed.")
    out.print(f"{counted(forget_ingested_keys(url), 'expired ingest key')} removed.")


@tls_app.command("init")
def init_tls(
    folder: Annotated[Path, typer.Option("--dir", help="Where to write them.")] = Path("tls"),
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the servers; repeat it.")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew the certificates; the CA stays.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, help="How long the certificates are valid.")] = 365,
) -> None:
    """Make a private CA, and certificates for servers and clients."""
    from moraine.tls import authority

    make = authority.renew if renew else authority.init
    written = make(folder, host or (), timedelta(days=days))
    shown = Table("certificate", "key", "valid until")
    for path in written:
        ends = authority.expiry_of(path).strftime("%Y-%m-%d")
        shown.add_row(str(path), path.with_suffix(".key").name, ends)
    out.print(shown)
    out.print(
        f"Keep {authority.CA}.key offline: who has it can make certificates. Next: "
        "`api.tls` and `client-auth` in docs/settings.md.",
        highlight=False,
    )


class Contract(StrEnum):
    DELEGATION = "delegation"
    INGEST = "ingest"


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="Overrides api.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Overrides api.port.")] = None,
    openapi: Annotated[
        Contract | None, typer.Option(help="Print that OpenAPI document and exit.")
    ] = None,
) -> None:
    """Serve the API alone, without Airflow's web server."""
    from moraine.app import assembly

    if openapi:
        write = {
            Contract.INGEST: assembly.ingest_openapi_document,
            Contract.DELEGATION: assembly.openapi_document,
        }
        document = write[openapi]()
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return
    import uvicorn

    from moraine.http.server import server_options

    log.configure()
    settings = _settings()
    uvicorn.run(
        assembly.create_standalone_app(settings),
        host=host or settings.api.host,
        port=port or settings.api.port,
        **server_options(settings.api),
    )


# --- Helpers --------------------------------------------------------------------------------


def _settings() -> Any:
    """The current settings, or those of the embedded stack if nothing else is configured."""
    from pydantic import ValidationError

    from moraine.settings import get_settings

    if "MORAINE_CONFIG" not in os.environ and not Path("moraine.toml").exists():
        use_environment_of_running_stack()
    try:
        return get_settings()
    except (ValidationError, ValueError, OSError) as error:
        raise MoraineError(f"The settings are not usable: {error}") from error


def _client() -> Any:
    from moraine.client.delegation import DelegationClient

    return DelegationClient(_settings())


def _ingest_client() -> Any:
    from moraine.ingest.rest.client import IngestClient

    return IngestClient(_settings())


def _column(words: str) -> dict[str, str]:
    name, _, type = words.strip().partition(" ")
    if not type.strip():
        raise typer.BadParameter(f"write {words!r} as 'NAME TYPE'", param_hint="--column")
    return {"name": name, "type": type.strip()}


def _show_columns(table: dict[str, Any]) -> None:
    shown = Table("column", "type", title=f"{table['database']}.{table['table']}")
    for column in table["columns"]:
        shown.add_row(column["name"], column["type"])
    out.print(shown)


def _split(table: str) -> tuple[list[str], str]:
    *namespace, name = table.split(".")
    if not namespace:
        raise typer.BadParameter("write it as NAMESPACE.TABLE", param_hint="TABLE")
    return namespace, name


def _show(answer: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    else:
        show(answer)


def _follow(client: Any, task_id: str, *, quiet: bool) -> None:
    with follow_progress(out, quiet=quiet) as show:
        for event, data in client.events(task_id):
            show(event, data)


def _show_outcome(task: dict[str, Any]) -> None:
    out.print(
        f"[bold]{as_given(task['subject'])}[/bold]  {task['delegation_task_id']}  {task['status']}",
        soft_wrap=True,
    )
    if task["result_summary"]:
        out.print(as_given(task["result_summary"]), highlight=False)
    result = task["execution_result"] or {}
    for table in result_tables(result):
        out.print(table)
    if inventory := result.get("inventory"):
        words = f"Every file by name: {inventory}"
        out.print(words, highlight=False, markup=False, soft_wrap=True)


def _show_state(task: dict[str, Any]) -> None:
    out.print(f"{task['delegation_task_id']} is {task['status']}.")
