"""Folders of a test's own on disk, S3 and Azure, with a Storage that may use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import obstore

from moraine.storage.clients import Target, open_client
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage, StorageLimits
from support.azurite import ACCOUNT, Azurite
from support.seaweedfs import SeaweedFS


class Place(Protocol):
    """A folder of a test's own in some store, and a look at it by other means."""

    base: str
    storage: Storage
    batch: int
    """How many files one request deletes."""

    def put(self, *names: str, content: bytes = b"x") -> list[str]: ...

    def names(self) -> set[str]: ...


class DiskPlace:
    batch = 1000

    def __init__(self, folder: Path) -> None:
        self.base = f"file:{folder}"
        self.storage = Storage(Credentials())
        self._folder = folder

    def put(self, *names: str, content: bytes = b"x") -> list[str]:
        for name in names:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return [f"{self.base}/{name}" for name in names]

    def names(self) -> set[str]:
        files = (path for path in self._folder.rglob("*") if not path.is_dir())
        return {str(path.relative_to(self._folder)) for path in files}


class S3Place:
    batch = 1000

    def __init__(self, server: SeaweedFS, credentials: Credentials, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        self.base = f"s3://{bucket}/wh/t"
        self.storage = Storage(credentials)

    def put(self, *names: str, content: bytes = b"x") -> list[str]:
        _put(Target("s3", self.bucket), self.server.properties(), names, content)
        return [f"{self.base}/{name}" for name in names]

    def names(self) -> set[str]:
        keys = self.server.keys_in(self.bucket, "wh/t/")
        return {key.removeprefix("wh/t/") for key in keys}


class AzurePlace:
    batch = 256

    def __init__(self, server: Azurite, credentials: Credentials, container: str) -> None:
        host = f"{container}@{ACCOUNT}.dfs.core.windows.net"
        self.server, self.container = server, container
        self.base = f"abfss://{host}/wh/t"
        self.storage = Storage(credentials)
        self._target = Target("azure", host)

    def put(self, *names: str, content: bytes = b"x") -> list[str]:
        _put(self._target, self.server.properties(), names, content)
        return [f"{self.base}/{name}" for name in names]

    def names(self) -> set[str]:
        client = open_client(self._target, self.server.properties(), StorageLimits())
        pages = obstore.list(client, prefix="wh/t")
        return {item["path"].removeprefix("wh/t/") for page in pages for item in page}


def _put(target: Target, config: Mapping[str, str], names: Iterable[str], content: bytes) -> None:
    client = open_client(target, config, StorageLimits())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: obstore.put(client, f"wh/t/{name}", content), names))
