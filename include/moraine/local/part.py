"""What a part of the stack is: how it is prepared, started, and known to be ready."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Event:
    """Something a person who waits may want to see. `total` makes it a progress bar."""

    part: str
    message: str
    done: int | None = None
    total: int | None = None
    ready: bool = False


Report = Callable[[Event], None]


def silent(_event: Event) -> None:
    """The reporter of those who do not watch."""


@dataclass(frozen=True)
class Command:
    """One process: what to run, with what on top of the inherited environment, and where."""

    argv: tuple[str, ...]
    directory: Path
    env: Mapping[str, str] = field(default_factory=dict)


class Part(ABC):
    """One process of the stack."""

    name: str
    needs: tuple[str, ...] = ()
    """Parts that must be ready before this one is started."""

    stop_signal: str = "TERM"
    stop_seconds: int = 10
    signal_group: bool = True
    """Whether the stop signal goes to the whole process group or to the first process only."""

    @property
    @abstractmethod
    def ports(self) -> dict[str, int]:
        """The ports it listens on, by the name of the setting that changes them."""

    @property
    def url(self) -> str:
        """Where people or clients find it, without a secret."""
        return ""

    @abstractmethod
    def command(self) -> Command: ...

    @abstractmethod
    def probe(self, since: datetime) -> None:
        """Return if the process started at `since` does its work; raise anything if not yet."""

    def prepare(self, report: Report) -> None:  # noqa: B027 (most parts have nothing to add)
        """What must be there before the process starts. It may be running already."""

    def clean(self) -> None:  # noqa: B027
        """What a process that was killed may have left, just before the next one starts."""

    def settle(self, report: Report) -> None:  # noqa: B027
        """What can only be done once the process answers."""
