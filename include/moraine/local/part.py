"""What a part of the stack is: how it is prepared, started, and known to be ready; the ports that
parts listen on, the tools that they run, and the lock of a folder that they share."""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from moraine.errors import MoraineError
from moraine.settings import PortSettings

LOOPBACK = "127.0.0.1"
_OWN_RANGE = range(20_000, 32_000)


class StackError(MoraineError, code="STACK_ERROR"):
    """The embedded stack could not do that."""

    def __init__(self, message: str | None = None, *, details: str | None = None) -> None:
        super().__init__(message, details=details)
        if details:
            self.add_note(details)  # a traceback shows notes, but not details


@dataclass(frozen=True)
class Event:
    """Progress, for the person who waits. `total` makes it a progress bar."""

    part: str
    message: str
    done: int | None = None
    total: int | None = None
    ready: bool = False


Report = Callable[[Event], None]


def silent(_event: Event) -> None:
    """A report that goes nowhere."""


@dataclass(frozen=True)
class Command:
    """One process: what to run, in which folder, with which variables on top of the inherited
    environment."""

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
        """The address for people and clients, without a secret."""
        return ""

    @abstractmethod
    def command(self) -> Command: ...

    @abstractmethod
    def probe(self, since: datetime) -> None:
        """Return if the process started at `since` is ready; raise any exception if it is not."""

    def prepare(self, report: Report) -> None:  # noqa: B027 (most parts have nothing to add)
        """Make what the process needs at its start. It may be running already."""

    def clean(self) -> None:  # noqa: B027
        """Remove what a killed process may have left, just before the next one starts."""

    def settle(self, report: Report) -> None:  # noqa: B027
        """Do what can only be done once the process answers."""

    def while_stopping(self, pid: int) -> None:  # noqa: B027
        """Called about once a second until the process, which was told to stop, has ended."""


def run_tool(command: Sequence[str | Path], failure: str, **options: Any) -> None:
    """Run a command to its end. Raises StackError with what it wrote, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise StackError(failure, details=(done.stderr or done.stdout).strip()[-1500:])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process and one thread at a time in a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # Servers set it too: connections that are closing do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def require_free(part: str, ports: dict[str, int]) -> None:
    for setting, port in ports.items():
        if is_taken(port):
            variable = "MORAINE_" + setting.upper().replace(".", "__").replace("-", "_")
            raise StackError(
                f"Port {port} for {part} is in use: stop what listens there, "
                f"or choose another port with {setting} (or {variable})."
            )


def free_ports() -> PortSettings:
    """A free port for every part."""
    names = list(PortSettings.model_fields)
    return PortSettings(**dict(zip(names, find_free(len(names)), strict=True)))


def find_free(count: int) -> list[int]:
    """Free ports, all different: each is held until the last is found.

    They are below the range of ports for outgoing connections, so that no such connection takes
    one before its server is started.
    """
    candidates = random.sample(_OWN_RANGE, 500)
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = candidates.pop()
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                found.append(port)
    return found
