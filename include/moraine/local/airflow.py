"""Airflow's components as processes of their own, on the embedded PostgreSQL."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import psycopg

from moraine.local.errors import StackError
from moraine.local.part import LOOPBACK, Command, Event, Part, Report
from moraine.local.postgres import Postgres
from moraine.local.processes import inherited_environment
from moraine.local.spark import USER as SPARK_USER
from moraine.local.vault import Vault, write_private
from moraine.settings import StackSettings

ADMIN = "admin"
_LOCAL_SETTINGS = """\
from moraine.local.scheduler import adjust

__all__: list[str] = []
adjust()
"""
_PARSING_PATIENCE = timedelta(seconds=60)


class Airflow:
    """What the components share: one environment, one metadata database."""

    def __init__(
        self,
        settings: StackSettings,
        vault: Vault,
        postgres: Postgres,
        project: Path,
    ) -> None:
        self.settings = settings
        self.home = settings.home / "airflow"
        self._vault = vault
        self._postgres = postgres
        self._project = project
        self.extra: Mapping[str, str] = {}
        """Laid over the environment of every component."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.settings.ports.airflow}"

    @property
    def database_url(self) -> str:
        return self._postgres.airflow_url

    @property
    def dags_folder(self) -> Path:
        return Path(self.extra.get("AIRFLOW__CORE__DAGS_FOLDER", self._project / "dags"))

    def variables(self) -> dict[str, str]:
        """Settings and connections, as every process that uses this Airflow needs them."""
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
        """Of the components. Their titles must not overwrite the mark they are found by."""
        return {**self.variables(), **self.extra, "SPT_NOENV": "1"}

    def prepare(self, report: Report) -> None:
        """Write the files Airflow wants, and bring its database to this version of Airflow."""
        (self.home / "config").mkdir(parents=True, exist_ok=True)
        with (self.home / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the components are prepared side by side
            (self.home / "config" / "airflow_local_settings.py").write_text(_LOCAL_SETTINGS)
            write_private(self._passwords_file, json.dumps({ADMIN: self._vault.airflow_admin}))
            if not self._is_migrated():
                report(Event("airflow", "making its database (once)"))
                self._migrate()

    def _is_migrated(self) -> bool:
        marker = self.home / "migrated"
        return marker.exists() and marker.read_text() == version("apache-airflow")

    def _migrate(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env={**inherited_environment(), **self.environment()},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip()[-1500:]
            raise StackError("Airflow's database could not be made.", details=last)
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
                "dags_folder": str(self._project / "dags"),
                "plugins_folder": str(self._project / "plugins"),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": "16",
                "dags_are_paused_at_creation": "False",
                "execution_api_server_url": f"{self.url}/execution/",
                "fernet_key": self._vault.airflow_fernet,
                "simple_auth_manager_users": f"{ADMIN}:admin",
                "simple_auth_manager_passwords_file": str(self._passwords_file),
                # Where the log server listens; the machine's own name may mean another interface.
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
                "secret_key": self._vault.airflow_secret,
            },
            "api_auth": {"jwt_secret": self._vault.airflow_jwt, "jwt_issuer": "moraine"},
            "scheduler": {
                "scheduler_idle_sleep_time": "0.1",
                # A task that goes on for an hour ends when the scheduler is gone for so long.
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

    def _connections(self) -> dict[str, dict[str, object]]:
        ports = self.settings.ports
        return {
            "moraine_ledger": {
                "conn_type": "postgres",
                "host": LOOPBACK,
                "port": ports.postgres,
                "login": "moraine",
                "password": self._vault.ledger,
                "schema": "moraine",
            },
            "moraine_spark": {
                "conn_type": "spark_connect",
                "host": LOOPBACK,
                "port": ports.spark,
                "login": SPARK_USER,
                # The provider's hook knows no session id: whoever builds the URL appends it.
                "extra": {"session_id": self._vault.spark_session},
            },
            "moraine_airflow": {
                "conn_type": "http",
                "host": LOOPBACK,
                "port": ports.airflow,
                "schema": "http",
                "login": ADMIN,
                "password": self._vault.airflow_admin,
            },
        }


class Component(Part):
    needs = ("postgres",)
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

    @property
    def ports(self) -> dict[str, int]:
        ports = self._airflow.settings.ports
        return {"stack.ports.airflow": ports.airflow, "stack.ports.otlp": ports.otlp}

    @property
    def url(self) -> str:
        return self._airflow.url

    def probe(self, since: datetime) -> None:
        del since
        health = f"{self._airflow.url}/api/v2/monitor/health"
        with urllib.request.urlopen(health, timeout=5) as answer:  # noqa: S310
            if json.load(answer)["metadatabase"]["status"] != "healthy":
                raise StackError("Airflow does not reach its database.")

    def settle(self, report: Report) -> None:
        """The interface for tasks is only built when it is first asked for, which takes seconds:
        let those not be the first task's."""
        del report
        health = f"{self._airflow.url}/execution/health"
        urllib.request.urlopen(health, timeout=60).close()  # noqa: S310


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
    name = "scheduler"
    job_type = "SchedulerJob"
    stop_seconds = 5  # it would wait for running tasks; those find their way back by the ledger

    @property
    def ports(self) -> dict[str, int]:
        return {"stack.ports.airflow-logs": self._airflow.settings.ports.airflow_logs}


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
            return  # a file without a Dag never shows up; the UI tells of files with errors
        rows = connection.execute(
            "select relative_fileloc from dag where last_parsed_time > %(since)s"
            " union select filename from import_error where timestamp > %(since)s",
            {"since": since},
        )
        parsed = {Path(row[0]).name for row in rows}
        if missing := self._dag_files() - parsed:
            raise StackError(f"Not read yet: {', '.join(sorted(missing))}.")

    def _dag_files(self) -> set[str]:
        """By Airflow's own rule of thumb for what may hold a Dag."""
        found = set()
        for path in self._airflow.dags_folder.glob("*.py"):
            text = path.read_text(errors="replace").lower()
            if "dag" in text and "airflow" in text:
                found.add(path.name)
        return found


COMPONENTS: tuple[type[Component], ...] = (ApiServer, Scheduler, DagProcessor, Triggerer)
