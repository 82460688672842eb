from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Long enough for a busy machine: a wait ends as soon as it can."""


def wait_for(
    look: Callable[[], T | None],
    else_say: str | Callable[[], str] = "it did not happen",
    patience: float = PATIENCE,
    *,
    pause: float = 0.1,
) -> T:
    """What `look` gives, as soon as it gives something."""
    give_up_at = time.monotonic() + patience
    while True:
        if found := look():
            return found
        if time.monotonic() > give_up_at:
            words = else_say if isinstance(else_say, str) else else_say()
            raise AssertionError(f"{words} (after {patience:.0f} s)")
        time.sleep(pause)
