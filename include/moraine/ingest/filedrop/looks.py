"""What a look at the watched prefixes found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from moraine.log import get_logger

log = get_logger(__name__)


@dataclass(slots=True)
class Counts:
    taken: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    """Files and prefixes that could not be read, moved or deleted this time."""
    settling: int = 0
    """Not to be taken yet."""
    waiting: int = 0
    """Taken, but not written yet."""

    def then(self, later: Counts) -> Counts:
        """Sums of what happened, and what is open as of later."""
        names = asdict(self)
        summed = {name: getattr(self, name) + getattr(later, name) for name in names}
        return replace(Counts(**summed), settling=later.settling, waiting=later.waiting)

    @property
    def open(self) -> int:
        return self.settling + self.waiting


@dataclass(slots=True)
class Look:
    counts: Counts = field(default_factory=Counts)
    next_due: float | None = None
    """Seconds until there is more to take."""
    full: bool = False
    """Too much is waiting to be written: nothing more is taken."""
    problem: Exception | None = None

    def leave(self, seconds: float) -> None:
        """A file is left for a later look."""
        self.counts.settling += 1
        self.next_due = seconds if self.next_due is None else min(seconds, self.next_due)

    def fail(self, event: str, error: Exception, **ids: Any) -> None:
        log.warning(event, error=type(error).__name__, reason=str(error), **ids)
        self.counts.failed += 1
        self.problem = self.problem or error
