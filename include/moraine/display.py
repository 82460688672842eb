"""Tasks as a person sees them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from moraine.operations.purge.model import Phase
from moraine.words import counted

# In a file or a pipe, lines are not wrapped.
_UNLIMITED = 1 << 16


def open_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal. Into a file or a pipe nothing is cut or wrapped: ids and paths are
    whole there."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_UNLIMITED)


def as_given(text: str) -> str:
    """A caller's text, for a table: neither markup nor a command to the terminal."""
    return escape(
        "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    )


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
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=quiet) as progress:
        bar = progress.add_task("QUEUED", total=None, pace="")

        def show(event: str, data: dict[str, Any]) -> None:
            if event == "state":
                progress.update(bar, description=data["status"])
                return
            words = " ".join(filter(None, [data.get("step"), data.get("phase")]))
            # Before a purge knows its files, it looks at the other tables of the catalog.
            counted = "files" if "files_done" in data else "tables"
            progress.update(
                bar,
                description=words.replace("_", " "),
                completed=data.get(f"{counted}_done") or 0,
                total=data.get(f"{counted}_total"),
                pace=_pace(data),
            )

        yield show


def _pace(progress: dict[str, Any]) -> str:
    """`1,200/s, 5 of 9 GB, 42 s left`, as far as it is known."""
    words = []
    if rate := progress.get("files_per_s"):
        words.append(f"{rate:,.0f}/s")
    if total := progress.get("bytes_total"):
        done = decimal(progress.get("bytes_done") or 0)
        words.append(f"{done} of {decimal(total)}")
    if left := progress.get("seconds_left"):
        words.append(f"{timedelta(seconds=round(left))} left")
    return ", ".join(words)


def result_tables(result: dict[str, Any]) -> Iterator[Table]:
    """What a purge found, what it did by phase, and what it named."""
    if result.get("by_kind"):
        yield inventory_table(result)
    if result.get("by_phase"):
        yield phase_table(result)
    for key, title in _NAMED.items():
        if named := result.get(key):
            yield path_table(counted(named["files"], *title), named["paths"])


_NAMED = {
    "failed": ("file could not be deleted", "files could not be deleted"),
    "outside": (
        "file lies outside the table's locations",
        "files lie outside the table's locations",
    ),
    "skipped": (
        "file outside the table's locations was left",
        "files outside the table's locations were left",
    ),
    "missing_metadata": ("manifest was gone before", "manifests were gone before"),
}


def inventory_table(result: dict[str, Any]) -> Table:
    """Files and bytes by kind."""
    shown = Table("files", _right("number"), _right("bytes"))
    for kind, count in sorted(result["by_kind"].items()):
        shown.add_row(kind.replace("_", " "), f"{count['files']:,}", f"{count['bytes']:,}")
    shown.add_section()
    shown.add_row("all", f"{result['files_found']:,}", f"{result['bytes_found']:,}")
    return shown


def phase_table(result: dict[str, Any]) -> Table:
    """What was deleted in each phase, in the order of the phases, and how long it took."""
    columns = ("deleted", "missing before", "left", "seconds")
    shown = Table("phase", *(_right(name) for name in columns))
    for phase in filter(result["by_phase"].__contains__, Phase):
        done = result["by_phase"][phase]
        left = done["files"] - done["deleted"] - done["already_missing"]
        shown.add_row(
            phase.replace("_", " "),
            f"{done['deleted']:,}",
            f"{done['already_missing']:,}",
            f"{left:,}",
            f"{done['seconds']:.2f}",
        )
    return shown


def path_table(title: str, paths: list[Any]) -> Table:
    """Paths, each with its reason where there is one; the first hundred of many."""
    shown = Table(Column("path", overflow="fold"), Column("why", overflow="fold"), title=title)
    for one in paths:
        path, reason = (one["path"], one["reason"]) if isinstance(one, dict) else (one, "")
        shown.add_row(as_given(path), as_given(reason))
    return shown


def id_column(name: str) -> Column:
    """Whole on the narrowest terminal: it is there to be copied."""
    return Column(name, no_wrap=True, min_width=36)


def _right(name: str) -> Column:
    return Column(name, justify="right")


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
