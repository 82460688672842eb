"""A purge as a Dag run: what each task of the Dag `table_purge` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pydantic import ValidationError

from moraine.access import airflow
from moraine.access.model import Action, Principal
from moraine.errors import MoraineError, ValidationFailed
from moraine.http.validation import explain
from moraine.log import get_logger
from moraine.operations.processes import authorize, dag_service, dag_worker
from moraine.operations.purge import OPERATION, service
from moraine.operations.purge.model import PurgeParameters
from moraine.orchestration.dag_runs import dag_runs
from moraine.orchestration.spark import spark_is_submitted, spark_session, submit
from moraine.tasks.model import Status, Task
from moraine.tasks.service import Submission

log = get_logger(__name__)


def admit(params: Mapping[str, Any], user: str | None) -> str:
    """The task that the run names, or a new one from the form, for the user who filled it in."""
    with _translated_errors():
        if params.get("task_id"):
            return _named_task(params["task_id"])
        asked = _from_form(params)
        with dag_service() as tasks:
            principal = Principal(tasks.settings.realm, airflow.ISSUER, user or "unknown")
            authorize(tasks, principal, Action.EXECUTE_TASKS, asked.table, "submit")
            submission = Submission(OPERATION, asked, principal.realm, principal.name)
            return str(tasks.admit(submission).task_id)


def acquire(task_id: str, run_id: str) -> None:
    with dag_worker(run_id) as worker, _translated_errors():
        task = service.acquire(worker, UUID(task_id))
    if task is None:
        raise AirflowSkipException(
            f"Task {task_id} is leased by another run, not due, or finished: nothing to do."
        )


def run_step(name: str, task_id: str, run_id: str, application: str) -> None:
    """A Spark step: on the warm Connect server, or in an app submitted to a master.

    Starting Spark takes most of the time of a small purge, so a submitted app does this step and
    all after it; the Dag's later tasks then find their work done.
    """
    with dag_worker(run_id) as worker, _translated_errors():
        task = worker.store.get(UUID(task_id))
        if name != "plan" and service.is_dry_run(task):
            raise AirflowSkipException("A dry run deletes nothing.")
        if not spark_is_submitted():
            service.SPARK_STEPS[name](worker, task.task_id, spark_session)
        elif service.is_verified(task):
            log.info("purge.step.already_done", step=name)
        else:
            names = list(service.SPARK_STEPS)
            wanted = ["plan"] if service.is_dry_run(task) else names[names.index(name) :]
            with worker.keeping_lease(task):
                submit(application, [task_id, run_id, *wanted])


def settle(task_id: str | None, run_id: str) -> str:
    """The end of the run. It is red unless the task succeeded, or another run has the task."""
    if task_id is None:
        raise AirflowFailException("No task was admitted, so there is none to settle; see `admit`.")
    with dag_worker(run_id) as worker:
        task, ours = service.settle(worker, UUID(task_id))
    words = _in_words(task)
    if not ours:
        raise AirflowSkipException(f"The task was not this run's to settle. {words}")
    dag_runs().annotate(OPERATION.dag_id, run_id, words)
    if task.status is not Status.SUCCESS:
        raise AirflowFailException(words)
    return words


def _in_words(task: Task) -> str:
    words = f"{task.subject}: {task.status.wire}. {task.result_summary or ''}"
    if task.next_scheduled_run_ts:
        words += f" Next attempt at {task.next_scheduled_run_ts:%F %T} UTC."
    return words


def _from_form(params: Mapping[str, Any]) -> PurgeParameters:
    try:
        return PurgeParameters.model_validate(
            {
                "table_identity": {
                    "catalog_name": params["catalog"],
                    "namespace_levels": params["namespace"].split("."),
                    "table_name": params["table"],
                },
                # The switch comes last: nothing else in the form turns a dry run into a purge.
                "properties": {
                    **(params.get("properties") or {}),
                    "dryRun": params["dry_run"],
                },
            }
        )
    except ValidationError as error:
        raise ValidationFailed(f"The form is not filled in: {explain(error)}") from None


def _named_task(task_id: str) -> str:
    try:
        return str(UUID(task_id))
    except ValueError:
        raise ValidationFailed(
            f"{task_id[:100]!r} is no task id; leave it empty to purge the table of the form."
        ) from None


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate Moraine's errors to Airflow's: the ledger decides about retries, not Airflow."""
    try:
        yield
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
