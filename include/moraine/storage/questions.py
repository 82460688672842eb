"""What is asked of an object store, by the client and the key of an object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import obstore

from moraine.storage.clients import Client
from moraine.storage.listing import FILES_PER_PAGE

if TYPE_CHECKING:
    from obstore import ObjectMeta


def range_of(client: Client, key: str, *, start: int, end: int) -> bytes:
    return bytes(obstore.get_range(client, key, start=start, end=end))


def folders_of(client: Client, prefix: str) -> Sequence[str]:
    return obstore.list_with_delimiter(client, prefix or None)["common_prefixes"]


def copied_to(client: Client, key: str, to: str) -> bool:
    obstore.copy(client, key, to)
    return True


def bytes_of(client: Client, key: str) -> bytes:
    return bytes(obstore.get(client, key).bytes())


def size_of(client: Client, key: str) -> int:
    return obstore.head(client, key)["size"]


class Listing:
    """A listing that goes on where it broke off."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix or None
        self._pages: Iterator[Sequence[ObjectMeta]] | None = None
        self._last: str | None = None

    def next_page(self, client: Client, _key: str) -> Sequence[ObjectMeta]:
        if self._pages is None:
            self._pages = iter(
                obstore.list(client, self._prefix, offset=self._last, chunk_size=FILES_PER_PAGE)
            )
        try:
            page = next(self._pages, ())
        except BaseException:
            self._pages = None
            raise
        if page:
            self._last = page[-1]["path"]
        return page
