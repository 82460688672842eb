"""Files on the local disk."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Sequence

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.storage.files import local_path
from moraine.storage.outcomes import DELETED, MISSING, Failure, Outcome

FILES_PER_BATCH = 1000
_PAUSES = (0.05, 0.2, 0.8)
_GONE = {errno.ENOENT, errno.ENOTDIR}
_UNSEEN: set[str] = {"unseen"}
_SEEN_ONCE: set[str] = {"seen once"}
_LISTED_AT_LEAST = 1000
_MOST_FOLDERS = 100_000
_LISTED_PER_FILE = 4
_NO_FILE = Failure("no file has such a name", refused=True)
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def is_local(location: str) -> bool:
    return location.startswith("/") or location[:5].lower() == "file:"


def to_path(location: str) -> str:
    """As local_path, but at once for the plain ones: there may be millions."""
    if location[:1] == "/" and location[1:2] != "/":
        return location
    if location[:6] == "file:/" and location[6:7] != "/":
        return location[5:]
    if location[:8] == "file:///" and location[8:9] != "/":
        return location[7:]
    return local_path(location)


class LocalDeletion:
    """Deletes local files, each with the checksum that Hadoop wrote beside it.

    No metadata names those. Looking for each costs half as much as deleting a file, so folders
    with several files are listed instead, once; unless they hold too much else.
    """

    def __init__(self) -> None:
        self._checksums: dict[str, set[str] | None] = {}
        self._may_list = _LISTED_AT_LEAST

    def delete(self, paths: Sequence[str]) -> list[Outcome]:
        """What became of each."""
        if len(self._checksums) > _MOST_FOLDERS:
            self._checksums.clear()
        self._may_list += _LISTED_PER_FILE * len(paths)
        outcomes = [self._delete(path) for path in paths]
        for pause in _PAUSES:
            again = [at for at, outcome in enumerate(outcomes) if _may_pass(outcome)]
            if not again:
                break
            time.sleep(pause)
            for at in again:
                outcomes[at] = self._delete(paths[at])
        return outcomes

    def _delete(self, path: str) -> Outcome:
        folder = path[: path.rfind("/")]
        listed = self._checksums.get(folder, _UNSEEN)
        if listed is _SEEN_ONCE:
            listed = self._checksums[folder] = self._list_checksums(folder)
        elif listed is _UNSEEN:
            self._checksums[folder] = _SEEN_ONCE
        outcome: Outcome = DELETED
        try:
            os.unlink(path)
        except (OSError, ValueError) as error:
            outcome = _outcome_of(error)
            if outcome is not MISSING:
                return outcome
        if listed or listed is None:
            checksum = f".{path[len(folder) + 1 :]}.crc"
            if listed is None or listed is _UNSEEN or checksum in listed:
                return _delete_checksum(f"{folder}/{checksum}") or outcome
        return outcome

    def _list_checksums(self, folder: str) -> set[str] | None:
        """Their names; None where a listing is not to be had, or too long."""
        try:
            with os.scandir(folder or "/") as entries:
                names = [entry.name for entry in itertools.islice(entries, self._may_list)]
        except (OSError, ValueError):
            return None
        self._may_list -= len(names)
        return {name for name in names if name.endswith(".crc")} if self._may_list else None


def _delete_checksum(path: str) -> Failure | None:
    try:
        if os.access(path, os.F_OK):
            os.unlink(path)
    except (OSError, ValueError) as error:
        outcome = _outcome_of(error)
        return outcome if isinstance(outcome, Failure) else None
    return None


def _outcome_of(error: OSError | ValueError) -> Outcome:
    if not isinstance(error, OSError):
        return _NO_FILE
    if error.errno in _GONE:
        return MISSING
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
        raise_unless_gone(location, error)
        return None


def size_local(location: str) -> int | None:
    try:
        return os.stat(to_path(location)).st_size
    except OSError as error:
        raise_unless_gone(location, error)
        return None


def raise_unless_gone(location: str, error: OSError | ValueError) -> None:
    """A name that no file can have is one that is not there."""
    if isinstance(error, OSError) and error.errno not in _GONE:
        raise problem_with(location, error, "read") from error


def problem_with(location: str, error: OSError, done: str) -> StorageRefused | StorageUnavailable:
    kind = StorageRefused if error.errno in _REFUSED else StorageUnavailable
    return kind(f"{location} could not be {done}: {error.strerror}.")
