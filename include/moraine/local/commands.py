"""`moraine setup|up|status|logs|down`: the embedded stack from the command line."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from moraine.local.airflow import ADMIN
from moraine.local.errors import StackError
from moraine.local.progress import ProgressDisplay
from moraine.local.stack import PartStatus, Stack
from moraine.settings import get_settings

app = typer.Typer()
out = Console()

Parts = Annotated[list[str] | None, typer.Argument(help="Only these parts; by default all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

_COLOURS = {"running": "green", "starting": "yellow", "failed": "red", "lost": "red"}


@app.command()
def setup() -> None:
    """Fetch the jars that the embedded stack needs."""
    with ProgressDisplay(out) as report:
        _configured().fetch_jars(on_event=report)


@app.command()
def up(parts: Parts = None) -> None:
    """Start the embedded stack and keep it running."""
    stack = _configured()
    with ProgressDisplay(out) as report:
        stack.up(parts or None, on_event=report)
    out.print(status_table(stack.status()))
    running = {part.name for part in stack.status() if part.pid}
    if "api-server" in running:
        password = stack.vault.airflow_admin
        out.print(f"Airflow   {stack.airflow.url}   user {ADMIN}   password {password}")
    out.print("`make logs` follows what it does, `make down` stops it.")


@app.command()
def status(as_json: Json = False) -> None:
    """Show what of the embedded stack runs, and where."""
    parts = _existing().status()
    if as_json:
        typer.echo(json.dumps([asdict(part) for part in parts], indent=2))
    else:
        out.print(status_table(parts))


@app.command()
def logs(
    parts: Parts = None,
    follow: Annotated[bool, typer.Option(help="Go on as they grow.")] = False,
    lines: Annotated[int, typer.Option(help="How many of each to begin with.")] = 20,
) -> None:
    """Show the logs of the embedded stack."""
    stack = _existing()
    files = [stack.logs(name) for name in parts or [part.name for part in stack.status()]]
    found = [str(file) for file in files if file.exists()]
    if not found:
        raise StackError("There are no logs yet: start the stack with `moraine up`.")
    tail = shutil.which("tail") or "tail"
    os.execv(tail, [tail, "-n", str(lines), *(["-F"] if follow else []), *found])  # noqa: S606


@app.command()
def down() -> None:
    """Stop the embedded stack; its data stays."""
    stack = _existing()
    with out.status("stopping"):
        stack.down()
    out.print(f"Stopped. The data stays in {_short(stack.home)}.", highlight=False)


def status_table(parts: list[PartStatus]) -> Table:
    table = Table("part", "state", "pid", "where", box=None, header_style="dim")
    for part in parts:
        colour = _COLOURS.get(part.state, "dim")
        pid = str(part.pid or "")
        table.add_row(part.name, f"[{colour}]{part.state}[/{colour}]", pid, part.url)
    return table


def _configured() -> Stack:
    try:
        return Stack.configured()
    except (ValidationError, ValueError, OSError) as error:
        raise StackError(f"The settings are not usable: {error}") from error


def _existing() -> Stack:
    """What was started, even if the settings have become unusable since."""
    try:
        return Stack.open(get_settings().stack.home)
    except (ValidationError, ValueError, OSError):
        return Stack.open()


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
