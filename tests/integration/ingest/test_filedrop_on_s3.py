"""Files that are dropped on S3, by a process that has its keys and by one that asks Airflow."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moraine.errors import StorageRefused
from moraine.local.stack import PROJECT
from support.filedrop import LARGE, LINE, Scene
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET, new_name


@pytest.fixture
def s3_scene(scene: Scene, seaweedfs: SeaweedFS) -> Scene:
    scene.location = f"s3a://{BUCKET}/{new_name()}/drop/"
    scene.storage = seaweedfs.properties()
    return scene


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed between copy and delete"])
def test_files_on_s3(s3_scene: Scene, seaweedfs: SeaweedFS, killed: bool) -> None:
    scene, client = s3_scene, seaweedfs.client()
    prefix = scene.location.removeprefix(f"s3a://{BUCKET}/")
    scene.prefix["after"] = "move"
    put: Callable[[str, bytes], Any] = lambda name, body: client.put_object(  # noqa: E731
        Bucket=BUCKET, Key=f"{prefix}{name}", Body=body
    )
    put("db/t/a b%20ü.ndjson", LARGE)
    if killed:
        with scene.writer.running():
            scene.killed_at("storage.copied")
    put("db/t/b.ndjson.gz", gzip.compress(LINE))
    put("db/t/bad.ndjson", b"BAD\n")

    scene.watch()

    assert sorted(scene.writer.written) == sorted([("db.t", LARGE), ("db.t", LINE)])
    names = {key.removeprefix(prefix) for key in seaweedfs.keys_in(BUCKET, prefix)}
    assert names == {
        "_done/db/t/a b%20ü.ndjson", "_done/db/t/b.ndjson.gz",
        "_failed/db/t/bad.ndjson", "_failed/db/t/bad.ndjson.error.json",
    }  # fmt: skip
    assert scene.sql("SELECT count(*) FROM ingest_files") == [(0,)]


def test_a_file_kept_on_s3_is_taken_once(s3_scene: Scene, seaweedfs: SeaweedFS) -> None:
    scene, client = s3_scene, seaweedfs.client()
    key = scene.location.removeprefix(f"s3a://{BUCKET}/") + "db/t/a.ndjson"
    for _ in range(2):
        client.put_object(Bucket=BUCKET, Key=key, Body=LINE)
        scene.watch()
        scene.expire_keys()
    assert scene.writer.written == [("db.t", LINE)]


def test_a_store_that_refuses_says_so(s3_scene: Scene, seaweedfs: SeaweedFS) -> None:
    s3_scene.storage = {**seaweedfs.properties(), "s3.secret-access-key": "wrong"}
    with pytest.raises(StorageRefused):
        s3_scene.watch()


_DAG_PROCESS = """
import json, runpy, sys
from moraine.runtime import watch_drops

runpy.run_path(sys.argv[1])
print(json.dumps(watch_drops()))
"""


@pytest.mark.parametrize("configured", [True, False])
def test_a_dag_gets_its_keys_from_airflow(
    s3_scene: Scene, seaweedfs: SeaweedFS, tmp_path: Path, configured: bool
) -> None:
    key = s3_scene.location.removeprefix(f"s3a://{BUCKET}/") + "db/t/a.ndjson"
    seaweedfs.client().put_object(Bucket=BUCKET, Key=key, Body=LINE)
    settings = tmp_path / "moraine.toml"
    place = "\n".join(f'"{name}" = "{value}"' for name, value in seaweedfs.place().items())
    settings.write_text(
        f"workspace = 'file://{tmp_path}/workspace'\n"
        f"[ingest.filedrop.prefixes.Main]\nlocation = '{s3_scene.location}'\nsettle = '0s'\n"
        f"[ingest.filedrop.prefixes.Main.storage]\n{place}\n"
        if configured
        else ""
    )
    keys = {
        "conn_type": "aws",
        "login": seaweedfs.access_key,
        "password": seaweedfs.secret_key,
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MORAINE_", "AIRFLOW"))}
    with s3_scene.writer.running():
        done = subprocess.run(
            [sys.executable, "-c", _DAG_PROCESS, str(PROJECT / "dags" / "ingest_filedrop.py")],
            env={
                **kept,
                "AIRFLOW_HOME": str(tmp_path),
                "AIRFLOW_CONN_MORAINE_LEDGER": s3_scene.url,
                "AIRFLOW_CONN_MORAINE_FILEDROP_MAIN": json.dumps(keys),
                "MORAINE_CONFIG": str(settings),
                "MORAINE_INGEST__FILEDROP__WATCH_DURATION": "0s",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts is None if not configured else counts["done"] == 1
    assert len(s3_scene.writer.written) == configured
