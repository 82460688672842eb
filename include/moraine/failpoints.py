"""Named points where a test can kill or hold a process, to show that nothing is lost there.

Off unless MORAINE_FAILPOINTS names a folder. A file in it that has a failpoint's name arms that
point once: `kill` ends the process as `kill -9` would, `hold` waits until the file `NAME.held`,
which then appears, is removed again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

_HOLD_LIMIT = 300.0


def failpoint(name: str) -> None:
    folder = os.environ.get("MORAINE_FAILPOINTS")
    if not folder:
        return
    held = Path(folder) / f"{name}.held"
    try:
        # Renaming disarms the point, so that only one process stops here.
        (Path(folder) / name).rename(held)
    except FileNotFoundError:
        return
    if held.read_text().strip() == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    give_up_at = time.monotonic() + _HOLD_LIMIT
    while held.exists() and time.monotonic() < give_up_at:
        time.sleep(0.02)


async def async_failpoint(name: str) -> None:
    """The same where others go on while one is held."""
    if "MORAINE_FAILPOINTS" in os.environ:
        await asyncio.to_thread(failpoint, name)
