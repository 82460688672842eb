"""Airflow's components as processes of their own, on the embedded PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg

from moraine.http import DELEGATION_PATH
from moraine.local.certificates import StackCertificates
from moraine.local.home import Vault
from moraine.local.part import LOOPBACK, Command, Event, Part, Report, StackError, locked, run_tool
from moraine.local.postgres import Postgres
from moraine.local.processes import catches_termination, grandchildren, inherited_environment
from moraine.local.spark import USER as SPARK_USER
from moraine.settings import StackSettings
from moraine.tls.files import write_private

ADMIN = "admin"
_LOCAL_SETTINGS = """\
from moraine.local.scheduler import adjust

__all__: list[str] = []
adjust()
"""
_PARSING_PATIENCE = timedelta(seconds=60)


@dataclass(repr=False)
class Airflow:
    """What Airflow's components share: one environment, one metadata database."""

    settings: StackSettings
    vault: Vault
    postgres: Postgres
    project: Path
    certificates: StackCertificates
    extra: Mapping[str, str] = field(default_factory=dict)
    """More variables for every component; they override the others."""

    @property
    def home(self) -> Path:
        return self.settings.home / "airflow"

    @property
    def url(self) -> str:
        return f"{self.certificates.scheme}://{LOOPBACK}:{self.settings.ports.airflow}"

    @property
    def database_url(self) -> str:
        return self.postgres.airflow_url

    @property
    def dags_folder(self) -> Path:
        return Path(self.extra.get("AIRFLOW__CORE__DAGS_FOLDER", self.project / "dags"))

    def variables(self) -> dict[str, str]:
        """Settings and connections for every process that uses this Airflow."""
        options = {
            f"AIRFLOW__{section.upper()}__{name.upper()}": value
            for section, values in self._options().items()
            for name, value in values.items()
        }
        connections = {
            f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection)
            for name, connection in self._connections().items()
        }
        return {"AIRFLOW_HOME": str(self.home), **options, **connections}

    def environment(self) -> dict[str, str]:
        """For the components. Their titles must not overwrite the mark they are found by."""
        return {**self.variables(), **self.extra, "SPT_NOENV": "1"}

    def prepare(self, report: Report) -> None:
        """Write Airflow's files, and migrate its database to this version of Airflow."""
        with locked(self.home):  # the components are prepared in parallel
            (self.home / "config").mkdir(exist_ok=True)
            (self.home / "config" / "airflow_local_settings.py").write_text(_LOCAL_SETTINGS)
            write_private(self._passwords_file, json.dumps({ADMIN: self.vault.airflow_admin}))
            if not self._is_migrated():
                report(Event("airflow", "creating its database (once)"))
                self._migrate()

    def _is_migrated(self) -> bool:
        marker = self.home / "migrated"
        return marker.exists() and marker.read_text() == version("apache-airflow")

    def _migrate(self) -> None:
        run_tool(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            "Airflow's database could not be created.",
            env={**inherited_environment(), **self.environment()},
            cwd=self.home,
        )
        (self.home / "migrated").write_text(version("apache-airflow"))

    @property
    def _passwords_file(self) -> Path:
        return self.home / "passwords.json"

    def _options(self) -> dict[str, dict[str, str]]:
        ports = self.settings.ports
        database = self.database_url.removeprefix("postgresql")
        logs = str(self.home / "logs")
        return {
            "core": {
                "dags_folder": str(self.project / "dags"),
                "plugins_folder": str(self.project / "plugins"),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": "16",
                "dags_are_paused_at_creation": "False",
                "execution_api_server_url": f"{self.url}/execution/",
                "fernet_key": self.vault.airflow_fernet,
                "simple_auth_manager_users": f"{ADMIN}:admin",
                "simple_auth_manager_passwords_file": str(self._passwords_file),
                # The address of the log server; the machine's own name may be another interface.
                "hostname_callable": "urllib.request.localhost",
            },
            "database": {
                "sql_alchemy_conn": f"postgresql+psycopg{database}",
                "sql_alchemy_conn_async": f"postgresql+psycopg_async{database}",
            },
            "api": {
                "host": LOOPBACK,
                "port": str(ports.airflow),
                "base_url": self.url,
                "workers": "1",
                "secret_key": self.vault.airflow_secret,
                **self._tls_options(),
            },
            "api_auth": {"jwt_secret": self.vault.airflow_jwt, "jwt_issuer": "moraine"},
            "scheduler": {
                "scheduler_idle_sleep_time": "0.1",
                # The long tasks of ingest end when the scheduler has been gone for this long.
                "scheduler_health_check_threshold": "15",
                # A task whose whole worker died is found after this long; the default is 5 min.
                "task_instance_heartbeat_timeout": "60",
                "task_instance_heartbeat_timeout_detection_interval": "5",
                "orphaned_tasks_check_interval": "30",
            },
            # A task survives a restart of the API server, which takes some seconds.
            "workers": {"max_failed_heartbeats": "20"},
            "dag_processor": {"refresh_interval": "10", "min_file_process_interval": "30"},
            "logging": {
                "base_log_folder": logs,
                "dag_processor_child_process_log_directory": f"{logs}/dag_processor",
                "worker_log_server_port": str(ports.airflow_logs),
                "trigger_log_server_port": str(ports.airflow_logs),
                "colored_console_log": "False",
            },
            "usage_data_collection": {"enabled": "False"},
        }

    def _tls_options(self) -> dict[str, str]:
        """No client certificates: browsers and tasks have none. The CA is for Airflow's own
        clients, which call the server through `execution_api_server_url`."""
        if not self.certificates.enabled:
            return {}
        return {
            "ssl_cert": str(self.certificates.cert()),
            "ssl_key": str(self.certificates.key()),
            "ssl_ca_file": str(self.certificates.ca),
            "ssl_cert_reqs": "none",
        }

    def _connections(self) -> dict[str, dict[str, object]]:
        ports = self.settings.ports
        return {
            "moraine_ledger": {
                "conn_type": "postgres",
                "host": LOOPBACK,
                "port": ports.postgres,
                "login": "moraine",
                "password": self.vault.ledger,
                "schema": "moraine",
            },
            "moraine_spark": {
                "conn_type": "spark_connect",
                "host": LOOPBACK,
                "port": ports.spark,
                "login": SPARK_USER,
                "password": self.vault.spark_token,
                # The provider's hook knows no session id: Moraine appends it to the URL.
                "extra": {"session_id": self.vault.spark_session, "use_ssl": False},
            },
            "moraine_airflow": {
                "conn_type": "http",
                "host": LOOPBACK,
                "port": ports.airflow,
                "schema": self.certificates.scheme,
                "login": ADMIN,
                "password": self.vault.airflow_admin,
            },
        }


class Component(Part):
    needs: tuple[str, ...] = ("postgres",)
    arguments: tuple[str, ...] = ()

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow

    @property
    def ports(self) -> dict[str, int]:
        return {}

    def prepare(self, report: Report) -> None:
        self._airflow.prepare(report)

    def command(self) -> Command:
        return Command(
            argv=(sys.executable, "-m", "airflow", self.name, *self.arguments),
            directory=self._airflow.home,
            env=self._airflow.environment(),
        )


class ApiServer(Component):
    name = "api-server"
    stop_seconds = 5  # it is closed by then; what takes longer is Python freeing its modules

    @property
    def ports(self) -> dict[str, int]:
        ports = self._airflow.settings.ports
        return {"stack.ports.airflow": ports.airflow, "stack.ports.otlp": ports.otlp}

    @property
    def url(self) -> str:
        return self._airflow.url

    def probe(self, since: datetime) -> None:
        del since
        health = self._airflow.certificates.get(f"{self.url}/api/v2/monitor/health", timeout=5)
        if json.loads(health)["metadatabase"]["status"] != "healthy":
            raise StackError("Airflow does not reach its database.")

    def settle(self, report: Report) -> None:
        """Ask for the interface for tasks once: it is built on demand, which takes seconds, and the
        first task need not wait for it."""
        del report
        self._airflow.certificates.get(f"{self.url}/execution/health", timeout=60)


class _Job(Component):
    """A component without a port: it is ready when it writes its heartbeat."""

    job_type: str

    def probe(self, since: datetime) -> None:
        with psycopg.connect(self._airflow.database_url, connect_timeout=2) as connection:
            self._check(connection, since)

    def _check(self, connection: psycopg.Connection, since: datetime) -> None:
        beating = connection.execute(
            "select 1 from job where job_type = %s and state = 'running'"
            " and latest_heartbeat > %s limit 1",
            [self.job_type, since],
        ).fetchone()
        if not beating:
            raise StackError("It has not written a heartbeat yet.")


class Scheduler(_Job):
    """Starts Dag runs as soon as it runs itself, so whatever they use is ready before it. Told to
    stop, it waits for the tasks that run."""

    name = "scheduler"
    job_type = "SchedulerJob"
    needs = ("postgres", "catalog", "spark", "api-server")
    stop_seconds = 20  # a purge that is still running then is taken over after the next start
    signal_group = False  # a task that has only just been forked would die of the signal

    @property
    def ports(self) -> dict[str, int]:
        return {"stack.ports.airflow-logs": self._airflow.settings.ports.airflow_logs}

    def while_stopping(self, pid: int) -> None:
        """Ask the tasks to end: those that would run for an hour do, and report success."""
        for task in grandchildren(pid):
            if catches_termination(task):
                with contextlib.suppress(psutil.Error):
                    task.terminate()


class Triggerer(_Job):
    name = "triggerer"
    job_type = "TriggererJob"
    arguments = ("--skip-serve-logs",)  # the scheduler serves the folder with all logs


class DagProcessor(_Job):
    """Ready when it has read every Dag file, so that a run can be triggered at once."""

    name = "dag-processor"
    job_type = "DagProcessorJob"

    def _check(self, connection: psycopg.Connection, since: datetime) -> None:
        super()._check(connection, since)
        if datetime.now(UTC) > since + _PARSING_PATIENCE:
            return  # a file without a Dag never shows up; the UI lists files with errors
        rows = connection.execute(
            "select relative_fileloc from dag where last_parsed_time > %(since)s"
            " union select filename from import_error where timestamp > %(since)s",
            {"since": since},
        )
        parsed = {Path(row[0]).name for row in rows}
        if missing := self._dag_files() - parsed:
            raise StackError(f"Not read yet: {', '.join(sorted(missing))}.")

    def _dag_files(self) -> set[str]:
        """Airflow's own heuristic for which files may hold a Dag."""
        found = set()
        for path in self._airflow.dags_folder.glob("*.py"):
            text = path.read_text(errors="replace").lower()
            if "dag" in text and "airflow" in text:
                found.add(path.name)
        return found


class MoraineApi(Component):
    """Moraine's API for machines, by mutual TLS; see ADR 0024."""

    name = "moraine-api"
    needs = ("postgres", "api-server")

    @property
    def ports(self) -> dict[str, int]:
        return {"stack.ports.api": self._airflow.settings.ports.api}

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._airflow.settings.ports.api}"

    def command(self) -> Command:
        return Command(
            argv=(sys.executable, "-c", "from moraine.cli import main; main()", "api"),
            directory=self._airflow.home,
            # OTLP is served by the api-server, whose port would not be free for it otherwise.
            env={**self._airflow.environment(), "MORAINE_INGEST__OTLP__GRPC_PORT": "0"},
        )

    def probe(self, since: datetime) -> None:
        del since
        live = f"{self.url}{DELEGATION_PATH}/health/live"
        self._airflow.certificates.get(live, timeout=5, as_client=True)


COMPONENTS: tuple[type[Component], ...] = (ApiServer, Scheduler, DagProcessor, Triggerer)
