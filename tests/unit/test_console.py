"""What a person copies from a terminal, and a script from a pipe, is whole."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from moraine.display import id_column
from moraine.local.commands import show_login

LONG = "/warehouse/" + "a-long-name/" * 40 + "00000-0-data.parquet"
_PRINT = f"""
from rich.table import Table
from moraine.display import open_console, path_table

for stderr in (False, True):
    console = open_console(stderr=stderr)
    console.print("Every file by name: {LONG}")
    console.print(path_table("failed", [{{"path": "{LONG}", "reason": "{LONG} is held"}}]))
"""


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def test_console_neither_cuts_nor_wraps_piped_output() -> None:
    narrow = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env=narrow, capture_output=True, text=True, check=True
    )
    for told in (done.stdout, done.stderr):
        sentence, *table = told.splitlines()
        assert sentence == f"Every file by name: {LONG}"
        (row,) = (line for line in table if "is held" in line)
        assert [cell.strip() for cell in row.split("│")[1:-1]] == [LONG, f"{LONG} is held"]
        assert max(map(len, table)) < 3 * len(LONG), "no wider than what is in it"


def test_console_shows_the_whole_login_on_a_narrow_terminal() -> None:
    console = terminal(30)
    password = "-" + "w" * 60
    show_login(console, "http://127.0.0.1:8080", "admin", password)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [
        ["Airflow", "http://127.0.0.1:8080"],
        ["user", "admin"],
        ["password", password],
    ]


def test_console_shows_whole_ids_on_a_narrow_terminal() -> None:
    console, task_id = terminal(80), str(uuid4())
    table = Table(id_column("task"), "table", "state", "attempt", "received", "result")
    table.add_row(task_id, "demo.shop.orders", "COMPLETED_SUCCESS", "1", "2026-01-01", "w " * 40)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert task_id in console.file.getvalue()
