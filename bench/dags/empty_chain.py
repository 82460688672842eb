"""As many tasks in a row as a purge has, and nothing in them: what Airflow itself costs."""

from __future__ import annotations

from airflow.sdk import chain, dag, task


@dag(schedule=None, is_paused_upon_creation=False, tags=["bench"])
def empty_chain() -> None:
    @task
    def nothing() -> None: ...

    chain(*(nothing.override(task_id=f"step_{number}")() for number in range(6)))


empty_chain()
