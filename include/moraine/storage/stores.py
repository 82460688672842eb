"""The port to every kind of store that tables are in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import failpoint
from moraine.storage import disk
from moraine.storage.clients import StorageLimits, Target, aim, is_plain
from moraine.storage.credentials import Credentials
from moraine.storage.deletion import Batch
from moraine.storage.files import StoredFile, is_local, local_path
from moraine.storage.locations import Roots, parse_location
from moraine.storage.objects import UNADDRESSABLE, Objects, always
from moraine.storage.outcomes import DELETED, MISSING, UNSENT, Failure, Outcome
from moraine.storage.sending import Permits

__all__ = [
    "DELETED",
    "MISSING",
    "UNSENT",
    "Failure",
    "Outcome",
    "Storage",
    "StorageLimits",
    "StoredFile",
]

FILES_PER_BATCH = 1000
_CHUNK_BYTES = 4 << 20
MAX_READ_BYTES = 256 << 20
"""The maximum of a file that is read as a whole: table metadata, a manifest or a list of them."""
_UNADDRESSABLE = Failure(UNADDRESSABLE, refused=True)


@dataclass(slots=True)
class _Groups:
    """The locations of a call by kind, as indexes into its list."""

    local: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    """Of the local ones."""
    remote: list[Batch] = field(default_factory=list)
    unaddressable: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)


def ignore(_indexes: list[int], _outcomes: list[Outcome]) -> None:
    return


class Storage:
    """Files as tables name them, in any store. Safe to use from several threads.

    With `bounds` it deletes nothing outside of them, whatever a caller asks for.
    """

    def __init__(
        self,
        credentials: Credentials,
        renew: Callable[[], Credentials] | None = None,
        *,
        limits: StorageLimits = StorageLimits(),
        bounds: Roots | None = None,
    ) -> None:
        self._bounds = bounds
        self._objects = Objects(credentials, renew, limits)
        self._disk = disk.LocalDeletion()

    def close(self) -> None:
        """Release connections. Requests in flight are not disturbed."""
        self._objects.close()

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def read(self, location: str, max_bytes: int = MAX_READ_BYTES) -> bytes | None:
        """The file's bytes, or None if there is no such file. A file outside the bounds is not
        opened: whoever named it may not be allowed to read it."""
        if self._bounds is not None and not self._bounds.contains(location):
            raise StorageRefused(f"{location} is outside the table's folders, so it is not read.")
        if is_local(location):
            return disk.read(location, max_bytes)
        return self._objects.read(location, max_bytes)

    def size(self, location: str) -> int | None:
        """The file's size, or None if there is no such file."""
        if is_local(location):
            return disk.size_of(location)
        found = self._objects.look(location)
        return found.size if found else None

    def look(self, location: str) -> StoredFile | None:
        """The file's size and version, or None if there is no such file."""
        return disk.look(location) if is_local(location) else self._objects.look(location)

    def chunks(
        self, location: str, size: int, *, chunk_bytes: int = _CHUNK_BYTES
    ) -> Iterator[bytes]:
        """The file's first `size` bytes in chunks; fewer if the file is shorter or disappears.

        Each chunk is a request of its own, so that a large file exceeds no time limit.
        """
        if is_local(location):
            yield from disk.read_chunks(location, size, chunk_bytes)
            return
        for start in range(0, size, chunk_bytes):
            end = min(start + chunk_bytes, size)
            chunk = self._objects.read_range(location, start, end)
            if chunk is None:
                return
            yield chunk

    def folders_in(self, location: str) -> list[str]:
        """The names of the folders in a folder."""
        if is_local(location):
            return disk.folders_in(location)
        return self._objects.folders_in(location)

    def files_below(self, location: str) -> Iterator[list[StoredFile]]:
        """Pages of the files below a folder, in no order. The folder need not exist."""
        if is_local(location):
            return disk.files_below(location)
        return self._objects.files_below(location)

    def write(self, location: str, content: bytes) -> None:
        """Write a small file, replacing one that exists."""
        if is_local(location):
            disk.write(location, content)
        else:
            self._objects.write(location, content)

    def move(self, source: str, target: str) -> bool:
        """Move a file within its store, replacing the target. False if there is no such file.

        Objects are copied and then deleted: a crash in between leaves both.
        """
        if is_local(source) and is_local(target):
            return disk.move(source, target)
        if not self._objects.copy(source, target):
            return False
        failpoint("storage.copied")
        [outcome] = self.delete([source])
        if isinstance(outcome, Failure):
            kind = StorageRefused if outcome.refused else StorageUnavailable
            raise kind(f"{source} was copied but not deleted: {outcome.reason}.")
        return True

    def remaining(self, locations: Sequence[str], permit: Callable[[], bool] = always) -> list[str]:
        """Which of these files still exist.

        Files that were not examined, because the permit was withdrawn, count as existing.
        """
        permits = Permits(permit)
        granted = True
        groups = self._group(locations)
        there = set(groups.unaddressable)
        for number, (at, path) in enumerate(zip(groups.local, groups.paths, strict=True)):
            if number % FILES_PER_BATCH == 0:
                granted = permits.granted()
            if not granted or disk.is_there(path):
                there.add(at)
        for group in groups.remote:
            there.update(self._objects.remaining(group, locations, permits))
        return [locations[at] for at in sorted(there)]

    def delete(
        self,
        locations: Sequence[str],
        *,
        permit: Callable[[], bool] = always,
        on_batch: Callable[[list[int], list[Outcome]], None] = ignore,
    ) -> list[Outcome]:
        """The outcome for each of these files, in their order.

        The permit is asked for right before every request, never by two threads at once; without
        it nothing more is sent. `on_batch` is called in this thread as batches complete.
        """
        permits = Permits(permit)
        groups = self._group(locations, self._outside(locations))
        outcomes: list[Outcome] = [UNSENT] * len(locations)
        # Closed at once, also when on_batch raises: closing stops the requests.
        with closing(self._delete(groups, permits)) as batches:
            for indexes, found in batches:
                for at, outcome in zip(indexes, found, strict=True):
                    outcomes[at] = outcome
                if any(outcome is not UNSENT for outcome in found):
                    on_batch(indexes, found)
        return outcomes

    def _delete(
        self, groups: _Groups, permits: Permits
    ) -> Generator[tuple[list[int], list[Outcome]]]:
        if groups.unaddressable:
            yield groups.unaddressable, [_UNADDRESSABLE] * len(groups.unaddressable)
        if groups.outside:
            yield groups.outside, [disk.OUTSIDE] * len(groups.outside)
        for start in range(0, len(groups.local), FILES_PER_BATCH):
            if not permits.granted():
                return
            part = slice(start, start + FILES_PER_BATCH)
            yield groups.local[part], self._delete_local(groups.paths[part])
        with closing(self._objects.delete(groups.remote, permits)) as batches:
            yield from batches

    def _delete_local(self, paths: list[str]) -> list[Outcome]:
        """Checks the bounds again: a symlink may have been placed since the call began."""
        if self._bounds is None:
            return self._disk.delete(paths)
        return self._disk.delete(paths, self._bounds.contains_real)

    def _outside(self, locations: Sequence[str]) -> list[int]:
        """The indexes of the locations outside the bounds."""
        if self._bounds is None:
            return []
        outside = self._bounds.outside(pa.array(locations, pa.string()))
        return [at for at, is_outside in enumerate(outside.to_pylist()) if is_outside]

    def _group(self, locations: Sequence[str], outside: Sequence[int] = ()) -> _Groups:
        """Group the locations by the client that reaches them."""
        credentials = self._objects.credentials()
        groups = _Groups(outside=list(outside))
        left_out = set(outside)
        by_target: dict[tuple[Target, str | None], Batch] = {}
        # There may be millions in a few buckets: each bucket's name is parsed once.
        known: dict[tuple[str, str | None], Batch] = {}
        for at, location in enumerate(locations):
            if at in left_out:
                continue
            if is_local(location):
                groups.local.append(at)
                groups.paths.append(local_path(location))
                continue
            end = location.find("/", location.find("://") + 3)
            key, prefix = location[end + 1 :], credentials.prefix_of(location)
            group = known.get((location[:end], prefix))
            if group is None or not is_plain(key):
                aimed = aim(parse_location(location))
                if aimed is None:
                    groups.unaddressable.append(at)
                    continue
                target, key = aimed
                group = by_target.setdefault((target, prefix), Batch(target, location, [], []))
                if not target.folder:
                    known[location[:end], prefix] = group
            group.indexes.append(at)
            group.keys.append(key)
        groups.remote = list(by_target.values())
        return groups
