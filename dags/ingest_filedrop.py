"""
### Take dropped files

Runs all the time: looks for files at `DATABASE/TABLE/FILE` below the prefixes in
`ingest.filedrop.prefixes`, and takes what is new, and no longer being written to, to its table. A
run ends by itself after `ingest.filedrop.watch-duration`; the next begins within ten seconds. A bad
file is set aside with its error beside it. A store that does not answer fails the run, after
everything else is done. Without any prefix there are no runs.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task

from moraine.settings import get_settings

settings = get_settings()
prefixes = settings.ingest.filedrop.prefixes


@dag(
    doc_md=__doc__,
    schedule=timedelta(seconds=10) if settings.ingest_is_on and prefixes else None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "execution_timeout": timedelta(hours=24)},
)
def ingest_filedrop() -> None:
    @task
    def take() -> dict[str, int]:
        """Take files; the return value is how many were taken, done, refused and are left."""
        from moraine.ingest import runs

        return runs.take_files()

    take()


ingest_filedrop()
