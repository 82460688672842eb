"""A purge as a Dag run: what each task of the Dag `table_purge` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from pydantic import ValidationError

from moraine import runtime
from moraine.errors import MoraineError, ValidationFailed
from moraine.log import get_logger
from moraine.operations.purge import OPERATION, steps
from moraine.operations.purge.payload import PurgeParameters
from moraine.tasks.model import Status, Task
from moraine.tasks.service import Submission
from moraine.validation import explain

log = get_logger(__name__)


def admit(params: Mapping[str, Any]) -> str:
    """The task that the run names, or a new one made of what somebody filled in."""
    with _failing_plainly():
        if params.get("task_id"):
            return _named_task(params["task_id"])
        asked = _from_form(params)
        with runtime.dag_service() as service:
            submission = Submission(OPERATION, asked, service.settings.realm)
            return str(service.admit(submission).task_id)


def acquire(task_id: str, run_id: str) -> None:
    with runtime.dag_worker(run_id) as worker, _failing_plainly():
        task = steps.acquire(worker, UUID(task_id))
    if task is None:
        raise AirflowSkipException(
            f"Task {task_id} is leased by another run, not due, or finished: nothing to do."
        )


def run_step(name: str, task_id: str, run_id: str, application: str) -> None:
    """A Spark step: on the warm Connect server, or in an app submitted to a master.

    Starting Spark is most of the time of a small purge, so a submitted app does this step and
    all after it; the Dag's later tasks then find theirs done.
    """
    with runtime.dag_worker(run_id) as worker, _failing_plainly():
        task = worker.store.get(UUID(task_id))
        if name != "plan" and steps.is_dry_run(task):
            raise AirflowSkipException("A dry run deletes nothing.")
        if not runtime.spark_is_submitted():
            steps.SPARK_STEPS[name](worker, task.task_id, runtime.spark_session)
        elif steps.is_verified(task):
            log.info("purge.step.already_done", step=name)
        else:
            names = list(steps.SPARK_STEPS)
            wanted = ["plan"] if steps.is_dry_run(task) else names[names.index(name) :]
            runtime.submit(application, [task_id, run_id, *wanted])


def settle(task_id: str | None, run_id: str) -> str:
    """The end of the run. It is red unless the task succeeded, or was none of this run's."""
    if task_id is None:
        raise AirflowFailException("No task was admitted, so there is none to settle; see `admit`.")
    with runtime.dag_worker(run_id) as worker:
        task, ours = steps.settle(worker, UUID(task_id))
    words = _in_words(task)
    if not ours:
        raise AirflowSkipException(f"The task was not this run's to settle. {words}")
    runtime.dag_runs().annotate(OPERATION.dag_id, run_id, words)
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
def _failing_plainly() -> Iterator[None]:
    """Moraine's own errors as Airflow's: the ledger decides about retries, not Airflow."""
    try:
        yield
    except MoraineError as error:
        raise AirflowFailException(f"{error.code}: {error}") from error
