"""Dag runs through Airflow's REST API."""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from typing import Any, Protocol
from uuid import UUID

import requests

from moraine.errors import MoraineError
from moraine.log import get_logger
from moraine.orchestration.connections import airflow_settings
from moraine.settings import AirflowSettings
from moraine.tls.contexts import secured

log = get_logger(__name__)

_LIVE_RUN_STATES = frozenset({"queued", "running"})
_MAX_STARTS = 100


class OrchestratorUnavailable(MoraineError):
    """Airflow did not take the Dag run; the task waits in the ledger for the next sweep."""

    code = "ORCHESTRATOR_UNAVAILABLE"
    http_status = 503


class RunnableTask(Protocol):
    """What names and describes the Dag run of a task."""

    @property
    def task_id(self) -> UUID: ...
    @property
    def version(self) -> int: ...
    @property
    def task_type(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def next_attempt(self) -> int: ...


class AirflowSession:
    """One user's access to Airflow's web server. The token is fetched when it is first needed and
    renewed when it is refused."""

    def __init__(self, settings: AirflowSettings) -> None:
        self.url = settings.url.rstrip("/")
        self._login = {
            "username": settings.username,
            "password": settings.password.get_secret_value(),
        }
        self._timeout = settings.timeout.total_seconds()
        self._session = secured(requests.Session(), settings.tls)
        self._token: str | None = None
        self._renewal = threading.Lock()

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        response = self._send(method, path, self._token or self._renewed_token(), **options)
        if response.status_code == 401:
            response = self._send(method, path, self._renewed_token(), **options)
        return response

    def _send(self, method: str, path: str, token: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", self._timeout)
        try:
            return self._session.request(
                method,
                f"{self.url}{path}",
                headers={**options.pop("headers", {}), "Authorization": f"Bearer {token}"},
                allow_redirects=False,
                **options,
            )
        except requests.RequestException as error:
            raise OrchestratorUnavailable(
                f"Airflow at {self.url} does not answer ({type(error).__name__})."
            ) from error

    def _renewed_token(self) -> str:
        with self._renewal:
            try:
                response = self._session.post(
                    f"{self.url}/auth/token", json=self._login, timeout=self._timeout
                )
                response.raise_for_status()
                self._token = str(response.json()["access_token"])
            except (requests.RequestException, KeyError, ValueError) as error:
                raise OrchestratorUnavailable(
                    f"Airflow at {self.url} gave user {self._login['username']!r} no token "
                    f"({type(error).__name__})."
                ) from error
            return self._token


class DagRuns:
    def __init__(self, session: AirflowSession) -> None:
        self._session = session

    def launch(self, dag_id: str, task: RunnableTask, form: Mapping[str, Any]) -> bool:
        """Start the work on this version of the task, unless a live run has it already.

        A run can die before it claims its task. Then the task's version has not changed, and the
        next run gets the next number.
        """
        for number in range(1, _MAX_STARTS + 1):
            run_id = f"{task.task_id}.v{task.version}" + (f".{number}" if number > 1 else "")
            body = {
                "dag_run_id": run_id,
                "logical_date": None,
                "conf": {**form, "task_id": str(task.task_id)},
                "note": f"{task.task_type} {task.subject}, attempt {task.next_attempt}",
            }
            status, _ = self._request("POST", f"dags/{dag_id}/dagRuns", body, allowed={409})
            if status != 409:
                log.info("task.launched", task_id=str(task.task_id), run_id=run_id)
                return True
            _, run = self._request("GET", f"dags/{dag_id}/dagRuns/{run_id}")
            if run.get("state") in _LIVE_RUN_STATES:
                return False
        raise OrchestratorUnavailable(
            f"{_MAX_STARTS} Dag runs for task {task.task_id} ended without claiming it; "
            "look at their logs."
        )

    def annotate(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a run's note, for people. A note that cannot be set is no failure."""
        try:
            self._request("PATCH", f"dags/{dag_id}/dagRuns/{run_id}", {"note": note[:1000]})
        except OrchestratorUnavailable as error:
            log.warning("run.note.lost", run_id=run_id, reason=str(error))

    def scheduler_is_alive(self) -> bool:
        """Whether a scheduler's heartbeat is recent; true if Airflow does not answer."""
        try:
            response = self._session.request("GET", "/api/v2/monitor/health")
            return bool(response.json()["scheduler"]["status"] == "healthy")
        except (OrchestratorUnavailable, ValueError, LookupError):
            return True

    def ping(self) -> None:
        self._request("GET", "version")

    def _request(
        self, method: str, path: str, body: Any = None, *, allowed: Container[int] = ()
    ) -> tuple[int, dict[str, Any]]:
        response = self._session.request(method, f"/api/v2/{path}", json=body)
        if response.status_code >= 400 and response.status_code not in allowed:
            raise OrchestratorUnavailable(
                f"Airflow answered {response.status_code} to {method} {path}."
            )
        try:
            return response.status_code, response.json() if response.content else {}
        except ValueError as error:
            raise OrchestratorUnavailable(
                f"What answers at {self._session.url} is not Airflow's API: it sends no JSON."
            ) from error


def dag_runs() -> DagRuns:
    """Airflow's API for Dags, by the connection `moraine_airflow`."""
    return DagRuns(AirflowSession(airflow_settings()))
