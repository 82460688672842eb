"""Folders of a test's own, on the local disk and on S3, with a Storage that may use them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import obstore

from moraine.storage.clients import Target, open_client
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage, StorageLimits
from support.seaweedfs import SeaweedFS


class Place(Protocol):
    """A folder of a test's own in some store, and a look at it by other means."""

    base: str
    storage: Storage

    def put(self, *names: str, content: bytes = b"x") -> list[str]: ...

    def names(self) -> set[str]: ...


class DiskPlace:
    def __init__(self, folder: Path) -> None:
        self.base = f"file:{folder}"
        self.storage = Storage(Credentials.none())
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
    def __init__(self, server: SeaweedFS, credentials: Credentials, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        self.base = f"s3://{bucket}/wh/t"
        self.storage = Storage(credentials)

    def put(self, *names: str, content: bytes = b"x") -> list[str]:
        target = Target("s3", self.bucket)
        client = open_client(target, self.server.properties(), StorageLimits())
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: obstore.put(client, f"wh/t/{name}", content), names))
        return [f"{self.base}/{name}" for name in names]

    def names(self) -> set[str]:
        keys = self.server.keys_in(self.bucket, "wh/t/")
        return {key.removeprefix("wh/t/") for key in keys}
