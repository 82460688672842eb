"""The port to every kind of store that tables lie in."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import obstore

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import failpoint
from moraine.storage.clients import (
    Client,
    StorageLimits,
    Target,
    aim,
    is_plain,
    open_client,
    refuse_after_fork,
)
from moraine.storage.credentials import Credentials
from moraine.storage.deletion import Batch, Deletion, is_final
from moraine.storage.disk import (
    FILES_PER_BATCH,
    LocalDeletion,
    is_local,
    is_there,
    read_local,
    size_local,
    to_path,
)
from moraine.storage.listing import (
    StoredFile,
    folders_local,
    list_local,
    look_local,
    object_version,
)
from moraine.storage.locations import parse_location
from moraine.storage.outcomes import DELETED, MISSING, UNSENT, Failure, Outcome
from moraine.storage.problems import Kind, Problem
from moraine.storage.questions import Listing, bytes_of, copied_to, folders_of, range_of, size_of
from moraine.storage.renewal import RenewedCredentials
from moraine.storage.sending import Permits, Sender, Unsent
from moraine.storage.writing import move_local, read_local_chunks, write_local

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

T = TypeVar("T")

_UNADDRESSABLE = "the store's client cannot address a key with such a name"
# A listing of up to 1,000 keys costs as much as a few questions for one.
_WORTH_A_LISTING = 16
_FEW_STRANGERS = 10_000
_CHUNK_BYTES = 4 << 20


@dataclass(slots=True)
class _SortedOut:
    """Where the locations of a call are, by their numbers in it."""

    local: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    remote: list[Batch] = field(default_factory=list)
    unaddressable: list[int] = field(default_factory=list)


def always() -> bool:
    return True


def ignore(_indexes: list[int], _outcomes: list[Outcome]) -> None:
    return


class Storage:
    """Files as tables name them, wherever they lie. Safe to use from several threads."""

    def __init__(
        self,
        credentials: Credentials,
        renew: Callable[[], Credentials] | None = None,
        *,
        limits: StorageLimits = StorageLimits(),
    ) -> None:
        self._limits = limits
        self._credentials = RenewedCredentials(credentials, renew)
        self._sender = Sender(self._credentials, limits)
        self._clients: dict[tuple[Target, str | None], Client] = {}
        self._clients_credentials = credentials
        self._lock = threading.Lock()
        self._disk = LocalDeletion()

    def close(self) -> None:
        """Let go of connections; whoever is still sending is not disturbed."""
        with self._lock:
            self._clients.clear()

    def __enter__(self) -> Storage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def read(self, location: str) -> bytes | None:
        """The file's bytes, or None if there is no such file."""
        if is_local(location):
            return read_local(location)
        return self._ask(location, bytes_of)

    def size(self, location: str) -> int | None:
        """The file's size, or None if there is no such file."""
        if is_local(location):
            return size_local(location)
        return self._ask(location, size_of)

    def look(self, location: str) -> StoredFile | None:
        """The file's size and version, or None if there is no such file."""
        if is_local(location):
            return look_local(location)
        meta = self._ask(location, obstore.head)
        return StoredFile(location, meta["size"], object_version(meta)) if meta else None

    def chunks(
        self, location: str, size: int, *, chunk_bytes: int = _CHUNK_BYTES
    ) -> Iterator[bytes]:
        """The file's first bytes, so many, in parts; they end early if the file does or goes.

        Each part is a request of its own, so that a large file outlasts no time limit.
        """
        if is_local(location):
            yield from read_local_chunks(location, size, chunk_bytes)
            return
        for start in range(0, size, chunk_bytes):
            end = min(start + chunk_bytes, size)
            part = self._ask(location, partial(range_of, start=start, end=end))
            if part is None:
                return
            yield part

    def folders_in(self, location: str) -> list[str]:
        """The names of the folders in a folder."""
        if is_local(location):
            return folders_local(location)
        one, prefix = self._aim_at_folder(location)
        found = self._demand("listed", one, lambda client, _key: folders_of(client, prefix))
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def files_below(self, location: str) -> Iterator[list[StoredFile]]:
        """Pages of the files below a folder, in no order. There may be none of it."""
        if is_local(location):
            yield from list_local(location)
            return
        one, prefix = self._aim_at_folder(location)
        listing = Listing(prefix)
        base, cut = location.rstrip("/"), len(prefix) + bool(prefix)
        while page := self._demand("listed", one, listing.next_page):
            yield [
                StoredFile(f"{base}/{meta['path'][cut:]}", meta["size"], object_version(meta))
                for meta in page
            ]

    def write(self, location: str, content: bytes) -> None:
        """Put a small file in place of what is there, if anything is."""
        if is_local(location):
            return write_local(location, content)
        one = self._aim(location)
        self._demand("written", one, lambda client, key: obstore.put(client, key, content))

    def move(self, source: str, target: str) -> bool:
        """Move a file within its store, in place of what is there. False if there is no such
        file. Objects are copied and then deleted: stopped in between, both are there."""
        if is_local(source) and is_local(target):
            return move_local(source, target)
        one = self._aim(source)
        aimed = aim(parse_location(target))
        if aimed is None or aimed[0] != one.target:
            raise StorageRefused(f"{source} cannot be moved to another store.")
        to = aimed[1]
        copied = self._ask(source, lambda client, key: copied_to(client, key, to))
        if not copied:
            return False
        failpoint("storage.copied")
        [outcome] = self.delete([source])
        if isinstance(outcome, Failure):
            kind = StorageRefused if outcome.refused else StorageUnavailable
            raise kind(f"{source} was copied but not deleted: {outcome.reason}.")
        return True

    def remaining(self, locations: Sequence[str], permit: Callable[[], bool] = always) -> list[str]:
        """Which of these files are still there.

        Those that were not looked at any more, for want of a permit, count as there.
        """
        permits = Permits(permit)
        granted = True
        sorted_out = self._sort_out(locations)
        there = set(sorted_out.unaddressable)
        for number, (at, path) in enumerate(zip(sorted_out.local, sorted_out.paths, strict=True)):
            if number % FILES_PER_BATCH == 0:
                granted = permits.granted()
            if not granted or is_there(path):
                there.add(at)
        for group in sorted_out.remote:
            there.update(self._remaining_of(group, locations, permits))
        return [locations[at] for at in sorted(there)]

    def delete(
        self,
        locations: Sequence[str],
        *,
        permit: Callable[[], bool] = always,
        on_batch: Callable[[list[int], list[Outcome]], None] = ignore,
    ) -> list[Outcome]:
        """What became of each of these files, in their order.

        The permit is asked for right before every request, never by two threads at once; without
        it nothing more is sent. on_batch hears of batches as they are done, in this thread.
        """
        permits = Permits(permit)
        sorted_out = self._sort_out(locations)
        outcomes: list[Outcome] = [UNSENT] * len(locations)
        # Closed at once, also when on_batch raises: that is what stops the sending.
        with closing(self._delete(sorted_out, permits)) as batches:
            for indexes, found in batches:
                for at, outcome in zip(indexes, found, strict=True):
                    outcomes[at] = outcome
                if any(outcome is not UNSENT for outcome in found):
                    on_batch(indexes, found)
        return outcomes

    def _delete(
        self, sorted_out: _SortedOut, permits: Permits
    ) -> Generator[tuple[list[int], list[Outcome]]]:
        if sorted_out.unaddressable:
            refused: list[Outcome] = [Failure(_UNADDRESSABLE, True)] * len(sorted_out.unaddressable)
            yield sorted_out.unaddressable, refused
        for start in range(0, len(sorted_out.local), FILES_PER_BATCH):
            if not permits.granted():
                return
            part = slice(start, start + FILES_PER_BATCH)
            yield sorted_out.local[part], self._disk.delete(sorted_out.paths[part])
        batches = [batch for group in sorted_out.remote for batch in self._batches(group)]
        if batches:
            deletion = Deletion(self._sender, self._client, permits, self._limits)
            with closing(deletion.run(batches)) as done:
                for batch, outcomes in done:
                    yield batch.indexes, outcomes

    def _batches(self, group: Batch) -> Iterator[Batch]:
        most = min(self._limits.batch_size, group.target.most_per_request)
        for start in range(0, len(group.keys), most):
            yield group.part(start, start + most)

    def _sort_out(self, locations: Sequence[str]) -> _SortedOut:
        """Put each location with those that one client reaches."""
        credentials = self._credentials.current()
        sorted_out = _SortedOut()
        groups: dict[tuple[Target, str | None], Batch] = {}
        # There may be millions in a few buckets: what a bucket's name means is read once.
        known: dict[tuple[str, str | None], Batch] = {}
        for at, location in enumerate(locations):
            if is_local(location):
                sorted_out.local.append(at)
                sorted_out.paths.append(to_path(location))
                continue
            end = location.find("/", location.find("://") + 3)
            key, prefix = location[end + 1 :], credentials.prefix_of(location)
            group = known.get((location[:end], prefix))
            if group is None or not is_plain(key):
                aimed = aim(parse_location(location))
                if aimed is None:
                    sorted_out.unaddressable.append(at)
                    continue
                target, key = aimed
                group = groups.setdefault((target, prefix), Batch(target, location, [], []))
                if not target.folder:
                    known[location[:end], prefix] = group
            group.indexes.append(at)
            group.keys.append(key)
        sorted_out.remote = list(groups.values())
        return sorted_out

    def _remaining_of(
        self, group: Batch, locations: Sequence[str], permits: Permits
    ) -> Iterator[int]:
        listed = self._list(group, permits) if len(group.keys) > _WORTH_A_LISTING else None
        if listed is not None:
            yield from (
                at for at, key in zip(group.indexes, group.keys, strict=True) if key in listed
            )
            return

        with ThreadPoolExecutor(self._limits.head_concurrency, "head") as pool:
            try:
                look = partial(self._is_there, permits=permits)
                found = list(pool.map(look, (locations[at] for at in group.indexes)))
            except BaseException:
                permits.stop()
                raise
        yield from itertools.compress(group.indexes, found)

    def _list(self, group: Batch, permits: Permits) -> set[str] | None:
        """Which keys of the group a listing of their common folder shows, if that is feasible.

        Where nearly all are gone, it is a request or two instead of one for each key. Listings
        show what was deleted last: S3, GCS and Azure all say so.
        """
        common = os.path.commonprefix(group.keys)  # noqa: RUF071 - cut to a folder next
        folder = common.rpartition("/")[0]
        if not folder or group.target.folder:
            return None
        wanted = set(group.keys)
        most_strangers = max(len(wanted), _FEW_STRANGERS)

        def act(credentials: Credentials) -> set[str] | None:
            client = self._client(group.target, group.location, credentials)
            found: set[str] = set()
            seen = 0
            for page in obstore.list(client, prefix=folder):
                found.update(wanted.intersection(item["path"] for item in page))
                seen += len(page)
                if seen - len(found) > most_strangers:
                    return None
            return found

        answer = self._sender.send(act, permits, self._limits.head_concurrency)
        return None if isinstance(answer, Problem | Unsent) else answer

    def _aim_at_folder(self, location: str) -> tuple[Batch, str]:
        one = self._aim(f"{location.rstrip('/')}/name")
        if one.target.folder:
            raise StorageRefused(f"{location}: {_UNADDRESSABLE}.")
        return one, one.keys[0].rpartition("/")[0]

    def _demand(self, done: str, one: Batch, question: Callable[[Client, str], T]) -> T:
        """As _ask, where nothing need be there."""
        answer = self._put(question, one, Permits(always))
        if isinstance(answer, Problem | Unsent):
            raise _error_of(one.location, answer, done)
        return answer

    def _ask(self, location: str, question: Callable[[Client, str], T]) -> T | None:
        permits = Permits(always)
        one = self._aim(location)
        answer = self._put(question, one, permits)
        if isinstance(answer, Problem | Unsent):
            if self._is_gone(one, answer, permits):
                return None
            raise _error_of(location, answer)
        return answer

    def _is_there(self, location: str, permits: Permits) -> bool:
        one = self._aim(location)
        answer = self._put(size_of, one, permits)
        if not isinstance(answer, Problem):
            return True
        gone = self._is_gone(one, answer, permits)
        if gone is None:
            raise _error_of(location, answer)
        return not gone

    def _is_gone(self, one: Batch, answer: Problem | Unsent, permits: Permits) -> bool | None:
        """Whether a file that could not be looked at is not there; None if nobody knows.

        Whoever may not list a bucket is refused what is not there; and some may list it only.
        """
        if isinstance(answer, Problem) and answer.kind is Kind.MISSING:
            return True
        if isinstance(answer, Problem) and answer.kind is Kind.REFUSED:
            listed = self._list(one, permits)
            return None if listed is None else not listed
        return None

    def _put(
        self, question: Callable[[Client, str], T], one: Batch, permits: Permits
    ) -> T | Problem | Unsent:
        def act(credentials: Credentials) -> T:
            return question(self._client(one.target, one.location, credentials), one.keys[0])

        return self._sender.send(act, permits, self._limits.head_concurrency)

    def _aim(self, location: str) -> Batch:
        aimed = aim(parse_location(location))
        if aimed is None:
            raise StorageRefused(f"{location}: {_UNADDRESSABLE}.")
        return Batch(aimed[0], location, [0], [aimed[1]])

    def _client(self, target: Target, location: str, credentials: Credentials) -> Client:
        refuse_after_fork()
        with self._lock:
            if credentials is not self._clients_credentials:
                self._clients.clear()
                self._clients_credentials = credentials
            key = target, credentials.prefix_of(location)
            client = self._clients.get(key)
            if client is None:
                config = credentials.for_location(location)
                client = self._clients[key] = open_client(target, config, self._limits)
            return client


def _error_of(
    location: str, answer: Problem | Unsent, done: str = "read"
) -> StorageRefused | StorageUnavailable:
    if isinstance(answer, Unsent):
        return StorageUnavailable(f"{location} was not {done}.")
    error = StorageRefused if is_final(answer) else StorageUnavailable
    return error(f"{location} could not be {done}: {answer.reason}.")
