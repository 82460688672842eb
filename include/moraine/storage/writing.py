"""Local files that are written or moved: whole or not at all, and on disk before they count."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from uuid import uuid4

from moraine.failpoints import failpoint
from moraine.storage.disk import problem_with, raise_unless_gone, to_path


def read_local_chunks(location: str, size: int, chunk_bytes: int) -> Iterator[bytes]:
    """The first `size` bytes, or fewer if the file has no more. A link is not followed."""
    try:
        descriptor = os.open(to_path(location), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            while size > 0 and (chunk := file.read(min(chunk_bytes, size))):
                size -= len(chunk)
                yield chunk
    except (OSError, ValueError) as error:
        raise_unless_gone(location, error)


def write_local(location: str, content: bytes) -> None:
    path = to_path(location)
    try:
        with _draft_of(path) as draft:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        _sync_folder(path)
    except OSError as error:
        raise problem_with(location, error, "written") from error


def move_local(source: str, target: str) -> bool:
    """False if there is no such file."""
    old, new = to_path(source), to_path(target)
    try:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        try:
            os.rename(old, new)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_to_other_disk(old, new)
        _sync_folder(new)
        _sync_folder(old)
    except OSError as error:
        raise problem_with(source, error, "moved") from error
    return True


def _move_to_other_disk(old: str, new: str) -> None:
    with _draft_of(new) as draft:
        shutil.copy2(old, draft, follow_symlinks=False)
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, new)
    failpoint("storage.copied")
    os.unlink(old)


@contextlib.contextmanager
def _draft_of(path: str) -> Iterator[str]:
    """A name beside a file's own, of which nothing is left."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{name[:100]}.{uuid4().hex}.tmp")
    try:
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
