"""What a benchmark found: a table for people, and a file for comparing runs.

report = Report("ledger", "Claim and complete")
report.figure("moraine_tasks_per_s", [9100.0, 9300.0, 9000.0])
report.ratio("claim_start_complete_vs_best_peer", 0.8, aim="0.5 or more")
report.ratios({"local_vs_action": 1.8}, {"local_vs_action": at_least(2, "Unlinking.")})
report.note("Two thirds of the time are PostgreSQL's.")
report.finish()
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Aim:
    words: str
    is_met: Callable[[float], bool]
    bound: str
    """What stands in the way where it is not met."""


def at_least(least: float, bound: str, *, hoped: str = "") -> Aim:
    words = f"{hoped}, at least {least:g}" if hoped else f"{least:g} or more"
    return Aim(words, lambda value: value >= least, bound)


def at_most(most: float, bound: str) -> Aim:
    return Aim(f"{most:g} or less", lambda value: value <= most, bound)


class Report:
    """Figures are measured several times and shown as medians; ratios are what counts."""

    def __init__(self, name: str, title: str) -> None:
        self._name = name
        self._title = title
        self._figures: dict[str, list[float]] = {}
        self._ratios: dict[str, float] = {}
        self._aims: dict[str, str] = {}
        self._notes: list[str] = []
        self._missed: list[str] = []

    def figure(self, name: str, values: Sequence[float]) -> None:
        self._figures[name] = [round(value, 4) for value in values]

    def ratio(self, name: str, value: float, *, aim: str) -> None:
        self._ratios[name] = round(value, 3)
        self._aims[name] = aim

    def ratios(self, values: Mapping[str, float], aims: Mapping[str, Aim]) -> None:
        for name, value in values.items():
            aim = aims.get(name)
            self.ratio(name, value, aim=aim.words if aim else "none: to compare")
            if aim and not aim.is_met(value):
                self._missed.append(f"{name} is {value:.2f}, wanted is {aim.words}. {aim.bound}")

    def note(self, text: str) -> None:
        """What a reader of the figures should know, such as where the time goes."""
        self._notes.append(text)

    def finish(self) -> None:
        """Print the table and write `bench/results/NAME.json`."""
        figures = Table("figure", "median", "lowest", "highest", "times", title=self._title)
        for name, values in self._figures.items():
            shown = (f"{value:,.3f}" for value in (median(values), min(values), max(values)))
            figures.add_row(name, *shown, str(len(values)))
        ratios = Table("ratio", "value", "aim")
        for name, value in self._ratios.items():
            ratios.add_row(name, f"{value:.2f}", self._aims[name])
        Console().print(figures, ratios, *self._notes, *self._missed, sep="\n")
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self._name}.json").write_text(json.dumps(self._content(), indent=2) + "\n")

    def _content(self) -> dict[str, object]:
        return {
            "ratios": self._ratios,
            "medians": {name: median(values) for name, values in self._figures.items()},
            "figures": self._figures,
            **({"notes": self._notes} if self._notes else {}),
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        }
