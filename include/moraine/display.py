"""Tasks as a person sees them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@contextmanager
def follow_progress(
    console: Console, *, quiet: bool = False
) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """A progress bar that is fed with a task's events."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=quiet) as progress:
        bar = progress.add_task("QUEUED", total=None)

        def show(event: str, data: dict[str, Any]) -> None:
            if event == "state":
                progress.update(bar, description=data["status"])
                return
            words = " ".join(filter(None, [data.get("step"), data.get("phase")]))
            progress.update(
                bar,
                description=words.replace("_", " "),
                completed=data.get("files_done") or 0,
                total=data.get("files_total"),
            )

        yield show


def inventory_table(result: dict[str, Any]) -> Table:
    """Files and bytes by kind."""
    shown = Table("files", "number", "bytes")
    for kind, count in sorted(result["by_kind"].items()):
        shown.add_row(kind.replace("_", " "), f"{count['files']:,}", f"{count['bytes']:,}")
    shown.add_section()
    shown.add_row("all", f"{result['files_found']:,}", f"{result['bytes_found']:,}")
    return shown


def history_table(task: dict[str, Any]) -> Table:
    """A task's history, a row for each version."""
    shown = Table("version", "state", "at (UTC)", "attempt", "why")
    for row in task["history"]:
        shown.add_row(
            str(row["version"]),
            row["ledger_status"],
            row["at"][11:23],
            str(row["attempt_count"]),
            row["reason"] + (f" ({row['error_code']})" if row["error_code"] else ""),
        )
    return shown
