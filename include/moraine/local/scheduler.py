"""What the embedded stack changes in Airflow's scheduler, through `airflow_local_settings.py`.

Every Airflow process imports that file; only the scheduler is changed.
"""

from __future__ import annotations

import importlib
import sys

PRELOADED = (
    "moraine.operations.purge.service",
    "moraine.operations.processes",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark.sql.connect.session",
)
"""LocalExecutor forks its workers from the scheduler, and they fork the tasks. So a task has every
module that the scheduler has imported. To import these would take each task two to three seconds.
"""


def adjust() -> None:
    if "scheduler" not in sys.argv[1:2]:
        return
    for module in PRELOADED:
        importlib.import_module(module)

    import airflow.utils.serve_logs

    airflow.utils.serve_logs.serve_logs = serve_logs


def serve_logs(port: int | None = None) -> None:
    """Airflow's server for the logs of running tasks, on the loopback address. Airflow's own has no
    setting for that and listens on every interface."""
    import uvicorn
    from airflow.configuration import conf

    uvicorn.run(
        "airflow.utils.serve_logs.log_server:get_app",
        factory=True,
        host="127.0.0.1",
        port=port or conf.getint("logging", "worker_log_server_port"),
        log_config=None,
        access_log=False,
    )
