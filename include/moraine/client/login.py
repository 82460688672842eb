"""A person's login: kept in a file of their own, renewed, and sent to one API only.

The command line reads `moraine.toml` of the working directory, which may be another person's. So a
login remembers the API and the endpoints that it was made for, and settings that name others find
no login.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moraine.client.provider import DeviceCode, Grant, LoginFailed, Provider, PublicClient
from moraine.settings import Settings
from moraine.settings.login import LoginSettings

_MARGIN = 30.0
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Login:
    """Contains secrets: it is written to its file and to nothing else."""

    api: str
    client_id: str
    provider: Provider
    grant: Grant


@dataclass(frozen=True)
class LoginFile:
    """One login below XDG_STATE_HOME, which only its owner may read."""

    path: Path

    @classmethod
    def of(cls, api: str, settings: LoginSettings) -> LoginFile:
        base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
        names = json.dumps([api, settings.issuer, settings.client_id])
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        return cls(base / "moraine" / f"login-{digest}.json")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Two processes must not use one refresh token: many providers take that for a theft."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(f"{self.path}.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LoginFailed(
                f"No login can be kept in {self.path.parent} ({error.strerror})."
            ) from error
        with os.fdopen(opened, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Login | None:
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LoginFailed(f"{self.path} cannot be read ({error.strerror}).") from error
        with os.fdopen(opened) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise LoginFailed(
                    f"{self.path} can be read by others, so its login may be known to them. Run "
                    "`moraine logout`, then `moraine login`."
                )
            try:
                found = json.loads(file.read(_MAX_BYTES))
                return Login(
                    str(found["api"]),
                    str(found["client_id"]),
                    Provider(**found["provider"]),
                    Grant(**found["grant"]),
                )
            except (ValueError, TypeError, LookupError):
                return None

    def write(self, login: Login) -> None:
        """A draft that is renamed: a reader sees the old login or the new one."""
        opened, draft = tempfile.mkstemp(dir=self.path.parent)  # with the mode 0600
        try:
            with os.fdopen(opened, "w") as file:
                json.dump(asdict(login), file)
            os.replace(draft, self.path)
        except BaseException:
            os.unlink(draft)
            raise

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class PersonsTokens:
    """The access token of a login, renewed while the provider allows it."""

    def __init__(self, file: LoginFile, settings: LoginSettings) -> None:
        self._file = file
        self._settings = settings

    def get(self) -> str:
        with self._file.locked():
            login = self._file.read()
            if login is None:
                raise LoginFailed("You are not logged in: run `moraine login`.")
            if time.time() + _MARGIN < login.grant.expires_at:
                return login.grant.access_token
            grant = self._renewed(login)
            if grant is None:
                self._file.delete()
                raise LoginFailed("Your login has ended: run `moraine login`.")
            self._file.write(replace(login, grant=grant))
            return grant.access_token

    def drop(self, value: str) -> None:
        with self._file.locked():
            login = self._file.read()
            if login and login.grant.access_token == value:
                self._file.write(replace(login, grant=replace(login.grant, expires_at=0.0)))

    def _renewed(self, login: Login) -> Grant | None:
        if not login.grant.refresh_token:
            return None
        # By the endpoints of the login, not those that the settings name now.
        client = PublicClient(login.provider, login.client_id, self._settings.tls)
        return client.refresh(login.grant.refresh_token)


def api_url(settings: Settings) -> str:
    return (settings.login.url or settings.airflow.url).rstrip("/")


def start_login(settings: Settings) -> tuple[PublicClient, DeviceCode]:
    """The code that the person has to allow in a browser."""
    login = settings.login
    if login.kind != "oauth2" or not login.issuer or not login.client_id:
        raise LoginFailed(
            'There is nothing to log in to: set login.kind to "oauth2", login.issuer and '
            "login.client-id."
        )
    if not login.is_for_people:
        raise LoginFailed(
            f"The client {login.client_id!r} has a credential of its own and needs no login."
        )
    client = PublicClient(Provider.discover(login.issuer, login.tls), login.client_id, login.tls)
    return client, client.ask_for_code(login.scope)


def finish_login(settings: Settings, client: PublicClient, code: DeviceCode) -> None:
    """Wait for the person, and keep what the provider gives."""
    grant = client.wait_for_grant(code)
    file = LoginFile.of(api_url(settings), settings.login)
    with file.locked():
        file.write(Login(api_url(settings), client.client_id, client.provider, grant))


def log_out(settings: Settings) -> str:
    """What was done, for people. The file goes first, whatever the provider answers."""
    file = LoginFile.of(api_url(settings), settings.login)
    with file.locked():
        try:
            login = file.read()
        except LoginFailed:
            return "Logged out here. Others could read the login: end it at the provider as well."
        finally:
            file.delete()
    if login is None:
        return "There was no login."
    client = PublicClient(login.provider, login.client_id, settings.login.tls)
    if client.revoke(login.grant.refresh_token or login.grant.access_token):
        return "Logged out, here and at the provider."
    return "Logged out here. The provider did not revoke the login; it ends when it expires."
