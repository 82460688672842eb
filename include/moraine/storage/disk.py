"""Files on the local disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.storage.files import local_path
from moraine.storage.outcomes import DELETED, MISSING, Failure, Outcome

FILES_PER_BATCH = 1000
_PAUSES = (0.05, 0.2, 0.8)
_GONE = {errno.ENOENT, errno.ENOTDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def is_local(location: str) -> bool:
    return location.startswith("/") or location[:5].lower() == "file:"


def to_path(location: str) -> str:
    """As local_path, but at once for the plain ones: there may be millions."""
    if location[:1] == "/" and location[1:2] != "/":
        return location
    if location[:6] == "file:/" and location[6:7] != "/":
        return location[5:]
    return local_path(location)


def delete_local(paths: Sequence[str]) -> list[Outcome]:
    """Delete these files and the checksums that Hadoop wrote beside them."""
    outcomes = [_unlink(path) for path in paths]
    for pause in _PAUSES:
        again = [at for at, outcome in enumerate(outcomes) if _may_pass(outcome)]
        if not again:
            break
        time.sleep(pause)
        for at in again:
            outcomes[at] = _unlink(paths[at])
    return outcomes


def _unlink(path: str) -> Outcome:
    outcome: Outcome = DELETED
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno not in _GONE:
            return _failure(error)
        outcome = MISSING
    except ValueError:
        return Failure("no file can have that name", refused=True)
    # Hadoop writes `.NAME.crc` beside each local file; no metadata ever names it.
    folder, _, name = path.rpartition("/")
    checksum = f"{folder}/.{name}.crc"
    if os.access(checksum, os.F_OK):
        try:
            os.unlink(checksum)
        except OSError as error:
            if error.errno not in _GONE:
                return _failure(error)
    return outcome


def _failure(error: OSError) -> Failure:
    return Failure(error.strerror or type(error).__name__, refused=error.errno in _REFUSED)


def _may_pass(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and not outcome.refused


def is_there(path: str) -> bool:
    """Whether it is there, or may be: what cannot be looked at is not known to be gone."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in _GONE
    except ValueError:
        return False
    return True


def read_local(location: str) -> bytes | None:
    try:
        with open(to_path(location), "rb") as file:
            return file.read()
    except OSError as error:
        _raise_unless_gone(location, error)
        return None


def size_local(location: str) -> int | None:
    try:
        return os.stat(to_path(location)).st_size
    except OSError as error:
        _raise_unless_gone(location, error)
        return None


def _raise_unless_gone(location: str, error: OSError) -> None:
    if error.errno in _GONE:
        return
    kind = StorageRefused if error.errno in _REFUSED else StorageUnavailable
    raise kind(f"{location} could not be read: {error.strerror}.") from error
