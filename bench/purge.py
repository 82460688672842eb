"""How fast and how large purges are: against Iceberg's own action, against nothing but the deletes,
and with ten times as many files.

All contestants work on tables of the same making, in one Spark, on one machine. Moraine's time is
that of its steps as a Dag runs them: the table loaded from a catalog, the inventory written, the
slices deleted under the fence of a real ledger, the root last. Verifying, which nobody else does,
is measured apart. Rounds are interleaved and change their order; what counts are medians.

On S3 there are two servers: moto, which takes a real amount of time for each key, and one of our
own that takes as little as it can, so that what remains is the clients' own time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import structlog
from rich.console import Console

from moraine.local.stack import Stack
from purge_contestants import (
    BareClient,
    Deleted,
    IcebergAction,
    Moraine,
    Purged,
    unlink_one_by_one,
)
from purge_site import BenchTable, Site, open_site
from report import Report, at_least, at_most
from s3_servers import running_s3

FILES = 100_000
TIMES_MORE = 10
ROUNDS, LONG_ROUNDS = 5, 3
WARM_UPS = 3
SERVERS = {"lake": "moto_s3.py", "swift": "memory_s3.py"}
"""The catalogs on S3, and the servers behind them."""
PREFIXES = {"lake": "s3", "swift": "s3_memory"}
console = Console()


AIMS = {
    "local_vs_iceberg_action": at_least(
        2,
        "Unlinking takes local_bare_s at least, and Spark's two stages before it local_plan_s.",
        hoped="3",
    ),
    "local_delete_vs_unlink_loop": at_least(
        0.4,
        "Starting a Spark job, and folders that two tasks empty at once.",
    ),
    "s3_vs_iceberg_action": at_least(
        1.3,
        "The server, for the share s3_server_busy of the time that deletes take: a client that "
        "lists like the action and deletes like a bare client gets s3_ceiling_with_enumeration.",
        hoped="2",
    ),
    "s3_delete_vs_bare_client": at_least(
        0.7,
        "Starting a Spark job, about half a second, which a bare client does not need.",
    ),
    "driver_rss_1m_vs_100k": at_most(1.5, "What the driver keeps of each file."),
    "time_per_file_1m_vs_100k": at_most(
        1.2,
        "Folders with ten times as many files, and a shuffle that no longer fits the caches.",
    ),
    "plan_vs_iceberg_enumeration": at_least(
        1,
        "The inventory is examined and written, where the action only lists.",
    ),
}


def main() -> None:
    arguments = _parse_arguments()
    report = Report("purge", f"Purges of {arguments.files:,} and {TIMES_MORE} times as many files")
    report.figure("load_at_start", [os.getloadavg()[0]])
    for name, values in _measure_small().items():
        report.figure(f"small_{name}_s", values)
    with ExitStack() as running:
        home = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="moraine-bench-")))
        servers = {
            name: running.enter_context(running_s3(script, home))
            for name, script in SERVERS.items()
        }
        stack = running.enter_context(Stack.ephemeral(home / "stack"))
        site = running.enter_context(open_site(stack, servers))
        logging.disable(logging.WARNING)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        ratios = Benchmark(site, report, arguments.files, arguments.rounds).run()
    report.ratios(ratios, AIMS)
    report.finish()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def _measure_small() -> dict[str, list[float]]:
    """In a process of its own: one that was connected to Spark cannot have one in itself."""
    console.print("A small purge on the whole stack")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("small_purge.py")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(json.loads(done.stdout))


@dataclass
class Contest:
    """What several rounds between Moraine, Iceberg's action and a bare loop came to."""

    moraine: list[Purged] = field(default_factory=list)
    action: list[Deleted] = field(default_factory=list)
    enumeration: list[Deleted] = field(default_factory=list)
    bare: list[Deleted] = field(default_factory=list)

    @property
    def vs_action(self) -> float:
        return _rate(one.whole for one in self.moraine) / _rate(self.action)

    @property
    def verified_vs_action(self) -> float:
        return _rate(one.verified for one in self.moraine) / _rate(self.action)

    @property
    def delete_vs_bare(self) -> float:
        return _rate(one.deleted for one in self.moraine) / _rate(self.bare)

    @property
    def deleting_only_vs_action(self) -> float:
        """As if the plan took no time, and the deletes as long as a bare client's."""
        return _rate(self.bare) / _rate(self.action)

    @property
    def ideal_vs_action(self) -> float:
        """As if the plan took as long as the action's, the deletes as long as a bare client's."""
        ideal = (
            Deleted(bare.files, listed.seconds + bare.seconds)
            for listed, bare in zip(self.enumeration, self.bare, strict=True)
        )
        return _rate(ideal) / _rate(self.action)

    @property
    def plan_vs_enumeration(self) -> float:
        return _rate(one.planned for one in self.moraine) / _rate(self.enumeration)


def _rate(deletes: Iterable[Deleted]) -> float:
    return median(one.files / one.seconds for one in deletes)


class Benchmark:
    def __init__(self, site: Site, report: Report, files: int, rounds: int) -> None:
        self._site = site
        self._report = report
        self._files = files
        self._rounds = rounds
        self._moraine = Moraine(site)
        self._action = IcebergAction(site)

    def run(self) -> dict[str, float]:
        # From small to large and before all else: memory that a process once had it keeps.
        local = self._compete("local", self._site.local_table, unlink_one_by_one, self._rounds)
        many = self._purge_many()
        moto, memory = (self._compete_on_s3(name) for name in SERVERS)
        return {
            "local_vs_iceberg_action": local.vs_action,
            "local_delete_vs_unlink_loop": local.delete_vs_bare,
            "s3_vs_iceberg_action": moto.vs_action,
            "s3_delete_vs_bare_client": moto.delete_vs_bare,
            "driver_rss_1m_vs_100k": _compare(
                many.moraine, local.moraine, lambda one: one.driver_mb
            ),
            "time_per_file_1m_vs_100k": _compare(
                many.moraine, local.moraine, lambda one: one.whole.seconds / one.files
            ),
            "plan_vs_iceberg_enumeration": local.plan_vs_enumeration,
            "spark_rss_1m_vs_100k": _compare(many.moraine, local.moraine, lambda one: one.spark_mb),
            "plan_vs_iceberg_enumeration_1m": many.plan_vs_enumeration,
            "local_vs_iceberg_action_with_verify": local.verified_vs_action,
            "s3_vs_iceberg_action_with_verify": moto.verified_vs_action,
            "s3_ceiling": moto.deleting_only_vs_action,
            "s3_ceiling_with_enumeration": moto.ideal_vs_action,
            "s3_memory_vs_iceberg_action": memory.vs_action,
            "s3_memory_ceiling_with_enumeration": memory.ideal_vs_action,
            "s3_memory_delete_vs_bare_client": memory.delete_vs_bare,
        }

    def _compete_on_s3(self, lake: str) -> Contest:
        server = psutil.Process(self._site.servers[lake].process.pid)
        busy: list[float] = []

        def bare(table: BenchTable) -> Deleted:
            client = BareClient(self._site, table)
            before = server.cpu_times()
            deleted = client.delete()
            after = server.cpu_times()
            worked = after.user + after.system - before.user - before.system
            busy.append(worked / deleted.seconds)
            return deleted

        name = PREFIXES[lake]
        contest = self._compete(name, partial(self._site.s3_table, lake=lake), bare, LONG_ROUNDS)
        self._report.figure(f"{name}_server_busy", busy[-LONG_ROUNDS:])
        return contest

    def _compete(
        self,
        name: str,
        make: Callable[[int], BenchTable],
        bare: Callable[[BenchTable], Deleted],
        rounds: int,
    ) -> Contest:
        warm_up, contest = Contest(), Contest()
        for number in range(WARM_UPS):
            console.print(f"{name}: warming up, {number + 1} of {WARM_UPS}")
            self._hold(warm_up, self._files // 4, make, bare, number)
        for number in range(rounds):
            self._hold(contest, self._files, make, bare, number)
            console.print(
                f"{name}: round {number + 1} of {rounds}: Moraine "
                f"{contest.moraine[-1].whole.seconds:.2f} s, the action "
                f"{contest.action[-1].seconds:.2f} s, bare {contest.bare[-1].seconds:.2f} s"
            )
        self._report_purges(name, contest.moraine)
        for who, deletes in (
            ("action", contest.action),
            ("action_enumeration", contest.enumeration),
            ("bare", contest.bare),
        ):
            self._report.figure(f"{name}_{who}_s", [one.seconds for one in deletes])
        return contest

    def _hold(
        self,
        contest: Contest,
        files: int,
        make: Callable[[int], BenchTable],
        bare: Callable[[BenchTable], Deleted],
        number: int,
    ) -> None:
        """One round: everybody gets a table; who begins, changes."""

        def list_and_delete_bare(table: BenchTable) -> None:
            contest.enumeration.append(self._action.enumerate(table))
            contest.bare.append(bare(table))

        turns: list[Callable[[BenchTable], None]] = [
            lambda table: contest.moraine.append(self._moraine.purge(table)),
            lambda table: contest.action.append(self._action.purge(table)),
            list_and_delete_bare,
        ]
        for turn in turns[:: -1 if number % 2 else 1]:
            table = make(files)
            self._site.collect_garbage()
            turn(table)

    def _purge_many(self) -> Contest:
        contest = Contest()
        for number in range(LONG_ROUNDS):
            table = self._site.local_table(self._files * TIMES_MORE)
            contest.enumeration.append(self._action.enumerate(table))
            self._site.collect_garbage()
            contest.moraine.append(self._moraine.purge(table))
            seconds = contest.moraine[-1].whole.seconds
            console.print(f"many: round {number + 1} of {LONG_ROUNDS}: Moraine {seconds:.2f} s")
        self._report_purges("many", contest.moraine)
        enumerations = [one.seconds for one in contest.enumeration]
        self._report.figure("many_action_enumeration_s", enumerations)
        return contest

    def _report_purges(self, name: str, purges: list[Purged]) -> None:
        for what in ("plan", "delete", "root", "verify"):
            self._report.figure(f"{name}_{what}_s", [getattr(one, what) for one in purges])
        for what in ("driver", "spark"):
            self._report.figure(f"{name}_{what}_mb", [getattr(one, f"{what}_mb") for one in purges])


def _compare(ours: list[Purged], theirs: list[Purged], of: Callable[[Purged], float]) -> float:
    return median(map(of, ours)) / median(map(of, theirs))


if __name__ == "__main__":
    main()
