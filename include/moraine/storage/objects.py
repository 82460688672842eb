"""Everything a Storage does with objects in S3, GCS and Azure."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import obstore

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.storage.clients import (
    Client,
    StorageLimits,
    Target,
    aim,
    open_client,
    refuse_after_fork,
)
from moraine.storage.credentials import Credentials, RenewedCredentials
from moraine.storage.deletion import Batch, Deletion
from moraine.storage.files import StoredFile, too_large
from moraine.storage.locations import parse_location
from moraine.storage.outcomes import Kind, Outcome, Problem, is_final
from moraine.storage.sending import Permits, Sender, Unsent

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")

UNADDRESSABLE = "the store's client cannot address a key with such a name"
_FILES_PER_PAGE = 1000
# A listing of up to 1,000 keys costs as much as a few requests for single keys.
_MIN_KEYS_TO_LIST = 16
_MIN_FOREIGN_KEYS = 10_000


def always() -> bool:
    """The permit of calls that need none."""
    return True


class Objects:
    """Objects in all buckets that the credentials open. Safe to use from several threads."""

    def __init__(
        self,
        credentials: Credentials,
        renew: Callable[[], Credentials] | None,
        limits: StorageLimits,
    ) -> None:
        self._limits = limits
        self._credentials = RenewedCredentials(credentials, renew)
        self._sender = Sender(self._credentials, limits)
        self._clients: dict[tuple[Target, str | None], Client] = {}
        self._clients_credentials = credentials
        self._lock = threading.Lock()

    def close(self) -> None:
        """Drop the clients. Requests in flight keep theirs and are not disturbed."""
        with self._lock:
            self._clients.clear()

    def credentials(self) -> Credentials:
        """The current credentials, renewed if they are due."""
        return self._credentials.current()

    def read(self, location: str, max_bytes: int) -> bytes | None:
        def get(client: Client, key: str) -> bytes | int:
            found = obstore.get(client, key)
            size = found.meta["size"]
            return size if size > max_bytes else bytes(found.bytes())

        found = self._ask(location, get)
        if isinstance(found, int):
            raise too_large(location, max_bytes)
        return found

    def read_range(self, location: str, start: int, end: int) -> bytes | None:
        def get_range(client: Client, key: str) -> bytes:
            return bytes(obstore.get_range(client, key, start=start, end=end))

        return self._ask(location, get_range)

    def look(self, location: str) -> StoredFile | None:
        meta = self._ask(location, obstore.head)
        return _stored_file(location, meta) if meta else None

    def folders_in(self, location: str) -> list[str]:
        one, prefix = self._aim_at_folder(location)

        def list_folders(client: Client, _key: str) -> Sequence[str]:
            return obstore.list_with_delimiter(client, prefix or None)["common_prefixes"]

        found = self._demand("listed", one, list_folders)
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def files_below(self, location: str) -> Iterator[list[StoredFile]]:
        one, prefix = self._aim_at_folder(location)
        listing = _Listing(prefix)
        base, cut = location.rstrip("/"), len(prefix) + bool(prefix)
        while page := self._demand("listed", one, listing.next_page):
            yield [_stored_file(f"{base}/{meta['path'][cut:]}", meta) for meta in page]

    def write(self, location: str, content: bytes) -> None:
        one = self._aim(location)
        self._demand("written", one, lambda client, key: obstore.put(client, key, content))

    def copy(self, source: str, target: str) -> bool:
        """Copy an object within its store. False if there is no such object."""
        aimed = aim(parse_location(target))
        if aimed is None or aimed[0] != self._aim(source).target:
            raise StorageRefused(f"{source} cannot be moved to another store.")
        to = aimed[1]

        def copy(client: Client, key: str) -> bool:
            obstore.copy(client, key, to)
            return True

        return bool(self._ask(source, copy))

    def delete(
        self, groups: Sequence[Batch], permits: Permits
    ) -> Generator[tuple[list[int], list[Outcome]]]:
        """The indexes and outcomes of each batch as it completes."""
        batches = [
            batch
            for group in groups
            for batch in group.parts(min(self._limits.batch_size, group.target.max_keys))
        ]
        if not batches:
            return
        deletion = Deletion(self._sender, self._client, permits, self._limits)
        with closing(deletion.run(batches)) as done:
            for batch, outcomes in done:
                yield batch.indexes, outcomes

    def remaining(self, group: Batch, locations: Sequence[str], permits: Permits) -> Iterator[int]:
        """The indexes of the group's objects that still exist."""
        listed = self._list(group, permits) if len(group.keys) > _MIN_KEYS_TO_LIST else None
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
        """The keys of the group that a listing of their common folder shows; None if the listing
        failed or is too long.

        If nearly all are gone, this takes a request or two instead of one for each key. Listings
        are consistent with deletes: S3, GCS and Azure all guarantee it.
        """
        common = os.path.commonprefix(group.keys)  # noqa: RUF071 - cut to a folder next
        folder = common.rpartition("/")[0]
        if not folder or group.target.folder:
            return None
        wanted = set(group.keys)
        max_foreign = max(len(wanted), _MIN_FOREIGN_KEYS)

        def act(credentials: Credentials) -> set[str] | None:
            client = self._client(group.target, group.location, credentials)
            found: set[str] = set()
            seen = 0
            for page in obstore.list(client, prefix=folder):
                found.update(wanted.intersection(item["path"] for item in page))
                seen += len(page)
                if seen - len(found) > max_foreign:
                    return None
            return found

        answer = self._sender.send(act, permits, self._limits.head_concurrency)
        return None if isinstance(answer, Problem | Unsent) else answer

    def _is_there(self, location: str, permits: Permits) -> bool:
        one = self._aim(location)
        answer = self._send(obstore.head, one, permits)
        if not isinstance(answer, Problem):
            return True
        gone = self._is_gone(one, answer, permits)
        if gone is None:
            raise _error_for(location, answer)
        return not gone

    def _is_gone(self, one: Batch, answer: Problem | Unsent, permits: Permits) -> bool | None:
        """Whether an object that could not be examined does not exist; None if that is unknown.

        Without the right to list, S3 answers 403 for missing keys; some principals may list a
        bucket but not read it, so a listing decides.
        """
        if isinstance(answer, Problem) and answer.kind is Kind.MISSING:
            return True
        if isinstance(answer, Problem) and answer.kind is Kind.REFUSED:
            listed = self._list(one, permits)
            return None if listed is None else not listed
        return None

    def _ask(self, location: str, question: Callable[[Client, str], T]) -> T | None:
        """The answer for an object, or None if there is no such object."""
        permits = Permits(always)
        one = self._aim(location)
        answer = self._send(question, one, permits)
        if isinstance(answer, Problem | Unsent):
            if self._is_gone(one, answer, permits):
                return None
            raise _error_for(location, answer)
        return answer

    def _demand(self, done: str, one: Batch, question: Callable[[Client, str], T]) -> T:
        """The answer to a question that does not need the object to exist."""
        answer = self._send(question, one, Permits(always))
        if isinstance(answer, Problem | Unsent):
            raise _error_for(one.location, answer, done)
        return answer

    def _send(
        self, question: Callable[[Client, str], T], one: Batch, permits: Permits
    ) -> T | Problem | Unsent:
        def act(credentials: Credentials) -> T:
            return question(self._client(one.target, one.location, credentials), one.keys[0])

        return self._sender.send(act, permits, self._limits.head_concurrency)

    def _aim(self, location: str) -> Batch:
        aimed = aim(parse_location(location))
        if aimed is None:
            raise StorageRefused(f"{location}: {UNADDRESSABLE}.")
        return Batch(aimed[0], location, [0], [aimed[1]])

    def _aim_at_folder(self, location: str) -> tuple[Batch, str]:
        one = self._aim(f"{location.rstrip('/')}/name")
        if one.target.folder:
            raise StorageRefused(f"{location}: {UNADDRESSABLE}.")
        return one, one.keys[0].rpartition("/")[0]

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


class _Listing:
    """A listing that resumes after the last page if a request fails."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix or None
        self._pages: Iterator[Sequence[ObjectMeta]] | None = None
        self._last: str | None = None

    def next_page(self, client: Client, _key: str) -> Sequence[ObjectMeta]:
        if self._pages is None:
            self._pages = iter(
                obstore.list(client, self._prefix, offset=self._last, chunk_size=_FILES_PER_PAGE)
            )
        try:
            page = next(self._pages, ())
        except BaseException:
            self._pages = None
            raise
        if page:
            self._last = page[-1]["path"]
        return page


def _stored_file(location: str, meta: ObjectMeta) -> StoredFile:
    # Listings and single answers of one store differ in the quotes around the tag.
    tag = meta["e_tag"]
    version = tag.removeprefix("W/").strip('"') if tag else meta["last_modified"].isoformat()
    return StoredFile(location, meta["size"], version)


def _error_for(
    location: str, answer: Problem | Unsent, done: str = "read"
) -> StorageRefused | StorageUnavailable:
    if isinstance(answer, Unsent):
        return StorageUnavailable(f"{location} was not {done}.")
    error = StorageRefused if is_final(answer) else StorageUnavailable
    return error(f"{location} could not be {done}: {answer.reason}.")
