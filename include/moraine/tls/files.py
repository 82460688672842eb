"""The files of TLS: private keys that stay private, and certificates that are renewed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from moraine.errors import MoraineError
from moraine.log import get_logger
from moraine.settings.tls import ClientTlsSettings

log = get_logger(__name__)

T = TypeVar("T")
_Version = tuple[tuple[int, int, int], ...]


class TlsUnusable(MoraineError):
    """A certificate, its key or a CA cannot be used."""

    code = "TLS_UNUSABLE"


def require_private(key: Path) -> None:
    """Refuse a private key that others may read, by PostgreSQL's rules: mode 0600, or 0640 if it
    belongs to root, as the mounted secrets of containers do."""
    try:
        found = key.stat()
    except OSError as error:
        raise TlsUnusable(f"The private key {key} cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(found.st_mode):
        raise TlsUnusable(f"The private key {key} is not a regular file.")
    if found.st_uid not in (os.geteuid(), 0):
        raise TlsUnusable(f"The private key {key} belongs to another user than this process.")
    others = stat.S_IRWXG | stat.S_IRWXO
    if found.st_uid == 0:
        others = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    if found.st_mode & others:
        raise TlsUnusable(
            f"The private key {key} can be read or written by others: set its mode to 0600 "
            "(0640 if it belongs to root)."
        )


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file whole or not at all, readable by its owner only from its first byte."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(text)
    draft.replace(path)


class Renewed(Generic[T]):
    """What is made of the files of a setting, made again when one of them changes.

    A renewal writes several files, one after the other. While they do not fit together, the last
    usable version stays in use.
    """

    def __init__(self, settings: ClientTlsSettings, make: Callable[[], T]) -> None:
        self._paths = [path for path in (settings.ca, settings.cert, settings.key) if path]
        self._make = make
        self._lock = threading.Lock()
        self._version = _version_of(self._paths)
        self._current = make()

    def get(self) -> T:
        return self.get_if_new()[0]

    def get_if_new(self) -> tuple[T, bool]:
        """The current version, and whether this call has made it."""
        version = _version_of(self._paths)
        if version == self._version:
            return self._current, False
        with self._lock:
            if version == self._version:
                return self._current, False
            self._version = version  # tried once: broken files do not cost every handshake
            try:
                self._current = self._make()
            except (TlsUnusable, OSError, ValueError) as error:
                log.warning("tls.renewal.unusable", reason=str(error))
                return self._current, False
        log.info("tls.renewed", files=[str(path) for path in self._paths])
        return self._current, True


def _version_of(paths: list[Path]) -> _Version:
    """Changes when a file is rewritten or replaced, also behind a symbolic link."""
    found = []
    for path in paths:
        try:
            seen = path.stat()
            # The time of the last change of the file or of its owner or mode.
            found.append((seen.st_ctime_ns, seen.st_size, seen.st_ino))
        except OSError:
            found.append((0, 0, 0))  # between two versions, or removed
    return tuple(found)
