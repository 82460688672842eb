"""Files of the workspace in which large bodies wait to be written. They are synced to disk."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Set
from datetime import timedelta
from pathlib import Path
from typing import Self
from uuid import uuid4

from moraine.ingest.model import StagedBody
from moraine.storage.files import local_path, make_private_folder, open_private, sync_folder


def staging_folder(workspace: str) -> Path:
    return Path(local_path(workspace)) / "ingest"


def remove_stale_files(workspace: str, needed: Set[str], age: timedelta) -> int:
    """Remove files left by a writer or sender that was killed, and return how many.

    Files that are `needed` are kept, however old they are.
    """
    removed = 0
    for path in staging_folder(workspace).glob("*.ndjson"):
        if str(path) not in needed and time.time() - path.stat().st_mtime > age.total_seconds():
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def measure(body: bytes) -> StagedBody:
    """A body that is complete in memory."""
    return StagedBody(hashlib.sha256(body).hexdigest(), len(body), _lines(body), inline=body)


class StagedFile:
    """A body on its way to disk. Unless `finish` was called, the block removes the file."""

    def __init__(self, folder: Path) -> None:
        make_private_folder(folder)
        self._path = folder / f"{uuid4()}.ndjson"
        self._file = open(open_private(self._path), "wb", buffering=1 << 20)  # noqa: SIM115
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

    def finish(self) -> StagedBody:
        """Sync the file and its folder, so that a crash of the machine does not lose the body."""
        self._file.flush()
        os.fsync(self._file.fileno())
        sync_folder(self._path.parent)
        self._finished = True
        return StagedBody(
            self._digest.hexdigest(),
            self._size,
            self._lines + self._open_line,
            location=str(self._path),
        )

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)


def _lines(body: bytes) -> int:
    return body.count(b"\n") + (not body.endswith(b"\n") and bool(body))
