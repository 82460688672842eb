"""Ports on 127.0.0.1: which are taken, and free ones for a stack of a test's own."""

from __future__ import annotations

import contextlib
import random
import socket

from moraine.local.errors import StackError
from moraine.local.part import LOOPBACK
from moraine.settings import PortSettings

_OWN_RANGE = range(20_000, 32_000)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: the remains of closed connections do not count.
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

    From below the range that outgoing connections take theirs from, so that none is lost to one
    before its server is started.
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
