"""Where large bodies wait to be written: files of the workspace, on disk before they count."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Set
from datetime import timedelta
from pathlib import Path
from typing import Self
from uuid import uuid4

from moraine.ingest.ledger import Body
from moraine.storage.files import local_path


def staging_folder(workspace: str) -> Path:
    return Path(local_path(workspace)) / "ingest"


def remove_left_over(workspace: str, needed: Set[str], age: timedelta) -> int:
    """Remove files whose writer or sender was killed before it could. How many there were.

    Those that are `needed` are kept, however long they wait.
    """
    removed = 0
    for path in staging_folder(workspace).glob("*.ndjson"):
        if str(path) not in needed and time.time() - path.stat().st_mtime > age.total_seconds():
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def measure(body: bytes) -> Body:
    """A body that is here as a whole."""
    return Body(hashlib.sha256(body).hexdigest(), len(body), _lines(body), inline=body)


class StagedFile:
    """A body on its way to disk. Unless `finish` was reached, the file goes with the block."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{uuid4()}.ndjson"
        self._file = self._path.open("xb", buffering=1 << 20)
        self._digest = hashlib.sha256()
        self._size = 0
        self._lines = 0
        self._open_line = False
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._file.close()
        if not self._finished:
            self.discard()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self._size += len(chunk)
        self._lines += chunk.count(b"\n")
        if chunk:
            self._open_line = not chunk.endswith(b"\n")

    def finish(self) -> Body:
        """The body, once a crash of the machine would not lose it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._finished = True
        return Body(
            self._digest.hexdigest(),
            self._size,
            self._lines + self._open_line,
            location=str(self._path),
        )

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)


def _lines(body: bytes) -> int:
    return body.count(b"\n") + (not body.endswith(b"\n") and bool(body))
