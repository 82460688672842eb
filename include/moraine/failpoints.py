"""Named points where a test can kill or hold a process, to show that nothing is lost there.

Off unless MORAINE_FAILPOINTS names a folder. A file in it that has a failpoint's name arms that
point once: `kill` ends the process like `kill -9`, `hold` waits until the file `NAME.held`, which
then appears, is removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

# Of purge: the current metadata file, the root, has its own points.
_PHASES = ("content", "manifests", "manifest_lists", "statistics", "old_metadata")
FAILPOINTS = frozenset(
    {
        "filedrop.hashed",
        "filedrop.marked",
        "filedrop.moved",
        "filedrop.settled",
        "filedrop.taken",
        "filedrop.reported",
        "gateway.drop.admitted",
        "gateway.drop.hidden",
        "idempotency.executed",
        "idempotency.finalized",
        "idempotency.reserved",
        "idempotency.taken_over",
        "ingest.before_finalize",
        "ingest.committed",
        "ingest.expired",
        "ingest.reserved",
        "ingest.staged",
        "ingest.written",
        "kafka.committed",
        "kafka.letters_committed",
        "kafka.written",
        "purge.acquire.claimed",
        "purge.acquire.pinned",
        "purge.delete.batch.after",
        "purge.delete.batch.before",
        *(
            f"purge.delete.{phase}.{at}"
            for phase in _PHASES
            for at in ("before", "marked", "after")
        ),
        "purge.drop.after",
        "purge.drop.before",
        "purge.plan.before",
        "purge.plan.recorded",
        "purge.plan.written",
        "purge.root.before",
        "purge.root.deleted",
        "purge.settle.before",
        "purge.verify.after",
        "purge.verify.before",
        "storage.copied",
    }
)
"""Every failpoint. A name that is not here is an error: a test would wait for it until it fails."""
_HOLD_LIMIT = 300.0
_PAUSE = 0.02


class UnknownFailpoint(ValueError):
    """A failpoint that does not exist was reached or armed."""


def known(name: str) -> str:
    """The name itself. Raises if there is no such failpoint."""
    if name not in FAILPOINTS:
        raise UnknownFailpoint(f"There is no failpoint {name!r}; moraine.failpoints lists them.")
    return name


def failpoint(name: str) -> None:
    for _ in _hold(name):
        time.sleep(_PAUSE)


async def async_failpoint(name: str) -> None:
    """The same for coroutines: others continue while one is held."""
    for _ in _hold(name):
        await asyncio.sleep(_PAUSE)


def _hold(name: str) -> Iterator[None]:
    """Yields as long as the caller is held at the point; never if the point is not armed."""
    folder = os.environ.get("MORAINE_FAILPOINTS")
    if not folder:
        return
    held = Path(folder) / f"{known(name)}.held"
    try:
        # The rename disarms the point, so that only one process stops here.
        (Path(folder) / name).rename(held)
        order = held.read_text().strip()
    except FileNotFoundError:
        return  # not armed, or released already
    if order == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    give_up_at = time.monotonic() + _HOLD_LIMIT
    while held.exists() and time.monotonic() < give_up_at:
        yield
