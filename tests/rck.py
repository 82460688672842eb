"""Iceberg's own compatibility kit against a catalog, and against the same through the gateway.

Each run has a catalog, a warehouse and a ledger of its own, and every test must end the same way in
all of them. A command and no benchmark: it measures nothing, it is right or wrong.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from support.compatibility_kit import (
    Outcome,
    Outcomes,
    Site,
    Way,
    differences,
    run_kit,
    running_site,
)

console = Console()


def main() -> int:
    outcomes: dict[Way, Outcomes] = {}
    results = Table("", *Outcome, "tests", "seconds", title="Iceberg's REST compatibility kit")
    with tempfile.TemporaryDirectory(prefix="moraine-rck-") as home:
        for way in Way:
            folder = Path(home) / way.name.lower()
            with console.status(f"the kit, {way}"), running_site(folder, way) as site:
                began = time.monotonic()
                outcomes[way] = run_kit(site.url, folder / "kit")
                seconds = time.monotonic() - began
                if way is Way.KEYED:
                    keys = tabulate_keys(site)
            counts = Counter(outcomes[way].values())
            shown = [str(counts[outcome]) for outcome in Outcome]
            results.add_row(way, *shown, str(counts.total()), f"{seconds:.0f}")
    console.print(results, keys)
    return report_differences(outcomes)


def tabulate_keys(site: Site) -> Table:
    """The kit's client sends a key with every mutation, because the gateway says that it may."""
    columns = ("operation", "keys", "succeeded", "refused", "open", "taken_over")
    records = site.records()
    title = f"Keys, {site.replays()} replays"
    table = Table(*columns, title=title, show_footer=True)
    for record in records:
        table.add_row(*(str(record[column]) for column in columns))
    table.columns[0].footer = "all"
    for column, name in zip(table.columns[1:], columns[1:], strict=True):
        column.footer = str(sum(int(str(record[name])) for record in records))
    return table


def report_differences(outcomes: dict[Way, Outcomes]) -> int:
    direct = outcomes[Way.DIRECT]
    failed = sorted(name for name, outcome in direct.items() if outcome is Outcome.FAILED)
    for name in failed:
        console.print(f"{name}: failed against the catalog itself")
    differing = 0
    for way in (Way.KEYED, Way.KEYLESS):
        for name, (directly, here) in differences(direct, outcomes[way]).items():
            differing += 1
            console.print(f"[red]{name}: {directly} directly, {here} {way}")
    if not differing:
        console.print(f"All {len(direct)} tests end the same way.")
    return 1 if differing or failed else 0


if __name__ == "__main__":
    sys.exit(main())
