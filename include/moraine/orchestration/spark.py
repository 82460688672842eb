"""Spark behind the connection `moraine_spark`: a Connect server, or a master to submit to."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from moraine.orchestration.connections import (
    SPARK,
    catalog_settings,
    executor_ledger_url,
    find_connection,
    ledger_url,
)
from moraine.settings import get_settings
from moraine.spark.session import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session() -> SparkSession:
    """A session of the Connect server.

    If the connection's extra names a `session_id`, every process shares that one session, and
    with it the server's warm Python workers.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    url = SparkConnectHook(SPARK).get_connection_url()
    connection = find_connection(SPARK)
    return connect(url, shared=connection.extra_dejson.get("session_id") if connection else None)


def spark_is_submitted() -> bool:
    """Whether the connection is a master URL to submit to, not a Connect server."""
    connection = find_connection(SPARK)
    return connection is not None and connection.conn_type == "spark"


def submit(application: str, arguments: list[str]) -> None:
    """Run a Spark app to its end on the master.

    The app's driver runs here and inherits the ledger's address and the catalogs' secrets; as
    Spark settings they would show in process lists.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    hook = SparkSubmitHook(
        conn_id=SPARK,
        name=f"moraine {arguments[0]}",
        application_args=arguments,
    )
    os.environ["MORAINE_LEDGER__URL"] = ledger_url()
    os.environ["MORAINE_LEDGER__EXECUTOR_URL"] = executor_ledger_url()
    export_catalogs()
    hook.submit(application)


def export_catalogs() -> None:
    """Put every catalog, with its secrets, into the environment of child processes."""
    catalogs = {name: catalog_settings(name).revealed() for name in get_settings().catalogs}
    for name in [name for name in os.environ if name.startswith("MORAINE_CATALOGS__")]:
        del os.environ[name]  # they would override what a connection says
    os.environ["MORAINE_CATALOGS"] = json.dumps(catalogs)
