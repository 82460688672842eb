"""Airflow's own connections, and the process that spark-submit starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_DAG_PROCESS = """
import json, os, subprocess, sys
from moraine.orchestration import connections, spark

found = {name: connections.catalog_settings(name).revealed() for name in ("Prod", "plain")}
spark.export_catalogs()
child = subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, stdout=subprocess.PIPE)
print(json.dumps([found, json.loads(child.stdout)]))
"""

_SUBMITTED_APP = """
import json
from moraine.settings import get_settings

print(json.dumps({name: one.revealed() for name, one in get_settings().catalogs.items()}))
"""


def test_airflow_connections_reach_dags_and_submitted_apps(tmp_path: Path) -> None:
    settings = tmp_path / "moraine.toml"
    settings.write_text(
        """
        [catalogs.Prod]
        uri = "http://prod"
        auth.scope = "all"
        [catalogs.plain]
        uri = "http://plain"
        storage."s3.endpoint" = "http://s3"
        """
    )
    principal = {"conn_type": "http", "login": "me", "password": "of the connection"}
    storage = {"conn_type": "aws", "login": "AK", "password": "x", "extra": {"region_name": "eu"}}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MORAINE_", "AIRFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", _DAG_PROCESS, _SUBMITTED_APP],
        env={
            **kept,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW_CONN_MORAINE_CATALOG_PROD": json.dumps(principal),
            "AIRFLOW_CONN_MORAINE_STORAGE_PLAIN": json.dumps(storage),
            "MORAINE_CONFIG": str(settings),
            "MORAINE_CATALOGS__PROD__AUTH__KIND": "oauth2",
            "MORAINE_CATALOGS__PROD__AUTH__CLIENT_SECRET": "of the environment",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    in_dag, in_app = json.loads(done.stdout.splitlines()[-1])
    assert in_app == in_dag
    auth = in_dag["Prod"]["auth"]
    assert (auth["kind"], auth["client_id"], auth["scope"]) == ("oauth2", "me", "all")
    assert auth["client_secret"] == "of the connection"
    assert in_dag["plain"]["storage"] == {
        "s3.endpoint": "http://s3",
        "s3.access-key-id": "AK",
        "s3.secret-access-key": "x",
        "client.region": "eu",
    }
    assert "of the" not in done.stderr
