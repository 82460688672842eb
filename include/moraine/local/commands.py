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
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from moraine.display import open_console
from moraine.local.airflow import ADMIN
from moraine.local.part import Event, StackError
from moraine.local.stack import PartStatus, Stack
from moraine.settings import get_settings

app = typer.Typer()
out = open_console()

Parts = Annotated[list[str] | None, typer.Argument(help="Only these parts; by default all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

_COLOURS = {"running": "green", "starting": "yellow", "failed": "red", "lost": "red"}


@app.command()
def setup() -> None:
    """Fetch the jars that the embedded stack needs."""
    with ProgressDisplay(out) as report:
        _configured().fetch_jars(on_event=report)


@app.command()
def up(
    parts: Parts = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="With TLS, and the API by mutual TLS; as stack.tls.")
    ] = False,
) -> None:
    """Start the embedded stack and keep it running."""
    if tls:
        # Also for the processes of the stack, which read the same settings.
        os.environ["MORAINE_STACK__TLS"] = "true"
    stack = _configured()
    with ProgressDisplay(out) as report:
        stack.up(parts or None, on_event=report)
    out.print(status_table(stack.status()))
    running = {part.name for part in stack.status() if part.pid}
    if "api-server" in running:
        show_login(out, stack.airflow.url, ADMIN, stack.vault.airflow_admin)
    out.print("`make logs` follows its logs, `make down` stops it.")


@app.command()
def status(as_json: Json = False) -> None:
    """Show which parts of the embedded stack run, and where."""
    parts = _existing().status()
    if as_json:
        typer.echo(json.dumps([asdict(part) for part in parts], indent=2))
    else:
        out.print(status_table(parts))


@app.command()
def logs(
    parts: Parts = None,
    follow: Annotated[bool, typer.Option(help="Follow them as they grow.")] = False,
    lines: Annotated[int, typer.Option(help="How many lines of each to begin with.")] = 20,
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
    out.print(f"Stopped. The data stays in {short_path(stack.home)}.", highlight=False)


class ProgressDisplay:
    """A live line for each part on a terminal; plain lines elsewhere.

    with ProgressDisplay(console) as report:
        stack.up(on_event=report)
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.fields[part]:<14}"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._lines: dict[str, TaskID] = {}
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if self._progress.disable:
            self._say(event)
            return
        if event.part not in self._lines:
            line = self._progress.add_task(event.message, total=None, part=event.part)
            self._lines[event.part] = line
        done, total = (1, 1) if event.ready else (event.done, event.total)
        self._progress.update(
            self._lines[event.part], description=event.message, completed=done or 0, total=total
        )

    def _say(self, event: Event) -> None:
        words = (event.part, event.message)
        if event.message != "starting" and words not in self._said:
            self._said.add(words)
            self._console.print(f"{event.part}: {event.message}", highlight=False)


def show_login(console: Console, url: str, user: str, password: str) -> None:
    """Each on a line of its own and never wrapped, because they are copied."""
    for name, value in {"Airflow": url, "user": user, "password": password}.items():
        console.print(f"{name:<10}{value}", soft_wrap=True, highlight=False, markup=False)


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
    """The stack that was started, even if the settings are invalid now."""
    try:
        return Stack.open(get_settings().stack.home)
    except (ValidationError, ValueError, OSError):
        return Stack.open()


def short_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
