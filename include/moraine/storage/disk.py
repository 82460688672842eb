"""Everything a Storage does with local files: read, list, write, move and delete."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import failpoint
from moraine.storage.files import LinkResolver, StoredFile, local_path, sync_folder, too_large
from moraine.storage.outcomes import DELETED, MISSING, Failure, Outcome

FILES_PER_PAGE = 1000
_RETRY_PAUSES = (0.05, 0.2, 0.8)
_MAX_FOLDERS = 100_000
# Entries that checksum listings may read: some at once, and more with each file deleted.
_LISTING_ALLOWANCE = 1000
_LISTING_ALLOWANCE_PER_FILE = 4
_GONE = {errno.ENOENT, errno.ENOTDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
OUTSIDE = Failure("it is outside the folders in which files may be deleted", refused=True)
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
_MAX_OPEN_FOLDERS = 200
_IMPOSSIBLE_NAME = Failure("no file can have such a name", refused=True)


def read(location: str, max_bytes: int) -> bytes | None:
    """A regular file of bounded size. A device has no end, and a symlink leads elsewhere."""
    with _none_if_gone(location):
        descriptor = os.open(local_path(location), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageRefused(f"{location} is not a regular file.")
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise too_large(location, max_bytes)
        return content
    return None


def read_chunks(location: str, size: int, chunk_bytes: int) -> Iterator[bytes]:
    """The first `size` bytes, or fewer if the file is shorter. A symlink is not followed."""
    with _none_if_gone(location):
        descriptor = os.open(local_path(location), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:
            while size > 0 and (chunk := file.read(min(chunk_bytes, size))):
                size -= len(chunk)
                yield chunk


def size_of(location: str) -> int | None:
    with _none_if_gone(location):
        return os.stat(local_path(location)).st_size
    return None


def look(location: str) -> StoredFile | None:
    """A regular file. Anything else counts as absent, symlinks included: they lead elsewhere."""
    with _none_if_gone(location):
        found = os.lstat(local_path(location))
        if stat.S_ISREG(found.st_mode):
            # Unlike the modification time, the change time cannot be set back.
            version = f"{found.st_mtime_ns:x}-{found.st_ctime_ns:x}-{found.st_ino:x}"
            return StoredFile(location, found.st_size, version)
    return None


def is_there(path: str) -> bool:
    """False only if the file is known to be gone: a file that cannot be examined may exist."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in _GONE
    except ValueError:
        return False
    return True


def folders_in(location: str) -> list[str]:
    with _none_if_gone(location), os.scandir(local_path(location)) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(filter(_is_text, names))
    return []


def files_below(location: str) -> Iterator[list[StoredFile]]:
    """Pages of the regular files below a folder. Files that disappear meanwhile are left out."""
    page: list[StoredFile] = []
    folders = [location.rstrip("/")]
    while folders:
        folder = folders.pop()
        with _none_if_gone(folder), os.scandir(local_path(folder)) as entries:
            for entry in entries:
                if not _is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{folder}/{entry.name}")
                elif entry.is_file(follow_symlinks=False):
                    found = look(f"{folder}/{entry.name}")
                    page += [found] if found else []
                if len(page) == FILES_PER_PAGE:
                    yield page
                    page = []
    if page:
        yield page


def write(location: str, content: bytes) -> None:
    """Write the whole file or nothing; it is on disk when this returns."""
    path = local_path(location)
    try:
        with _draft_of(path) as draft:
            with open(draft, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise _error_for(location, error, "written") from error


def move(source: str, target: str) -> bool:
    """False if there is no such file. The move is on disk when this returns."""
    old, new = local_path(source), local_path(target)
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
        sync_folder(os.path.dirname(new))
        sync_folder(os.path.dirname(old))
    except OSError as error:
        raise _error_for(source, error, "moved") from error
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
    """A temporary name beside the file, removed at the end. It depends on the file's name only, so
    that the next attempt overwrites what a crash left."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.tmp")
    try:
        yield draft
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


class _Folders:
    """Open folders, none of them reached through a symlink that was placed meanwhile.

    Symlinks are resolved first. Then the real path is entered part by part, and no part of it is
    followed if it is a symlink by now.
    """

    def __init__(self, is_allowed: Callable[[str, LinkResolver], bool]) -> None:
        self._is_allowed = is_allowed
        self._links = LinkResolver()
        self._open: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._links = LinkResolver()

    def open(self, folder: str) -> int | Failure:
        """A descriptor that is closed with the others."""
        if len(self._open) > _MAX_OPEN_FOLDERS:
            self.close()
        real = self._links.resolve(folder)
        if not self._is_allowed(real, self._links):
            return OUTSIDE
        return self._enter(real)

    def _enter(self, real: str) -> int:
        if real in self._open:
            return self._open[real]
        parent, _, name = real.rpartition("/")
        if not real:
            self._open[real] = os.open("/", _FOLDER)
        else:
            self._open[real] = os.open(name, _FOLDER, dir_fd=self._enter(parent))
        return self._open[real]


class LocalDeletion:
    """Deletes local files, each with the checksum file that Hadoop wrote beside it.

    No metadata names the checksum files. Looking for each costs half as much as deleting a file,
    so a folder is listed once, at its second file, unless it holds too many other files.
    """

    def __init__(self) -> None:
        self._visited: set[str] = set()
        self._checksums: dict[str, set[str] | None] = {}
        self._allowance = _LISTING_ALLOWANCE

    def delete(
        self,
        paths: Sequence[str],
        is_allowed: Callable[[str, LinkResolver], bool] = lambda _folder, _links: True,
    ) -> list[Outcome]:
        """The outcome for each path, in order. `is_allowed` is asked about each folder, once its
        symlinks are resolved."""
        if len(self._visited) > _MAX_FOLDERS:
            self._visited.clear()
            self._checksums.clear()
        self._allowance += _LISTING_ALLOWANCE_PER_FILE * len(paths)
        with _Folders(is_allowed) as folders:
            outcomes = [self._delete(folders, path) for path in paths]
            for pause in _RETRY_PAUSES:
                failed = [at for at, outcome in enumerate(outcomes) if _may_pass(outcome)]
                if not failed:
                    break
                time.sleep(pause)
                folders.close()  # another process may have moved some
                for at in failed:
                    outcomes[at] = self._delete(folders, paths[at])
        return outcomes

    def _delete(self, folders: _Folders, path: str) -> Outcome:
        folder, _, name = path.rpartition("/")
        checksums = self._checksums_in(folder)
        outcome: Outcome = DELETED
        try:
            opened = folders.open(folder)
        except (OSError, ValueError) as error:
            return _outcome_without_folder(folder, error)
        if isinstance(opened, Failure):
            return opened
        try:
            os.unlink(name, dir_fd=opened)
        except (OSError, ValueError) as error:
            outcome = _outcome_of(error)
            if outcome is not MISSING:
                return outcome
        checksum = f".{name}.crc"
        if checksums is None or checksum in checksums:
            return _delete_checksum(checksum, opened) or outcome
        return outcome

    def _checksums_in(self, folder: str) -> set[str] | None:
        """The names of a folder's checksum files; None if each has to be looked for."""
        if folder in self._checksums:
            return self._checksums[folder]
        if folder not in self._visited:
            self._visited.add(folder)
            return None
        self._checksums[folder] = self._list_checksums(folder)
        return self._checksums[folder]

    def _list_checksums(self, folder: str) -> set[str] | None:
        """None if the folder cannot be listed, or has too many entries."""
        try:
            with os.scandir(folder or "/") as entries:
                names = [entry.name for entry in itertools.islice(entries, self._allowance)]
        except (OSError, ValueError):
            return None
        self._allowance -= len(names)
        return {name for name in names if name.endswith(".crc")} if self._allowance else None


def _outcome_without_folder(folder: str, error: OSError | ValueError) -> Outcome:
    """A folder that became a symlink while it was entered is not missing, nor are its files."""
    if isinstance(error, OSError) and error.errno == errno.ENOTDIR and os.path.isdir(folder):
        return Failure("a folder of its path became a symlink", refused=False)
    return _outcome_of(error)


def _delete_checksum(name: str, folder: int) -> Failure | None:
    try:
        if os.access(name, os.F_OK, dir_fd=folder):
            os.unlink(name, dir_fd=folder)
    except (OSError, ValueError) as error:
        outcome = _outcome_of(error)
        return outcome if isinstance(outcome, Failure) else None
    return None


def _outcome_of(error: OSError | ValueError) -> Outcome:
    if not isinstance(error, OSError):
        return _IMPOSSIBLE_NAME
    if error.errno in _GONE:
        return MISSING
    return Failure(error.strerror or type(error).__name__, refused=error.errno in _REFUSED)


def _may_pass(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and not outcome.refused


@contextlib.contextmanager
def _none_if_gone(location: str) -> Iterator[None]:
    """Translate the errors of the block. It just ends if the file does not exist: a ValueError
    means a name that no file can have."""
    try:
        yield
    except ValueError:
        return
    except OSError as error:
        if error.errno not in _GONE:
            raise _error_for(location, error, "read") from error


def _error_for(location: str, error: OSError, done: str) -> StorageRefused | StorageUnavailable:
    kind = StorageRefused if error.errno in _REFUSED else StorageUnavailable
    return kind(f"{location} could not be {done}: {error.strerror}.")


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8: any other cannot be written as a location."""
    return name.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in name)
