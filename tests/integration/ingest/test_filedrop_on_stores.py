"""Files that are dropped on S3 and on Azure, by a process that has the keys and by one that asks
Airflow."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moraine.errors import StorageRefused
from moraine.local.stack import PROJECT
from moraine.storage.credentials import Credentials
from support.azurite import Azurite
from support.filedrop import LARGE, LINE, Scene
from support.seaweedfs import SeaweedFS
from support.storage_places import AzurePlace, Place, S3Place
from support.stores import BUCKET, new_name


@pytest.fixture
def s3_scene(scene: Scene, seaweedfs: SeaweedFS) -> Scene:
    scene.location = f"s3a://{BUCKET}/{new_name()}/drop/"
    scene.storage = seaweedfs.properties()
    return scene


@pytest.fixture(params=["s3", "azure"])
def place(request: pytest.FixtureRequest, scene: Scene) -> Place:
    """The folder that the scene watches."""
    name = f"drops-{new_name()}"
    if request.param == "s3":
        s3: SeaweedFS = request.getfixturevalue("seaweedfs")
        found: Place = S3Place(s3, Credentials(s3.properties()), s3.create_bucket(name))
        scene.storage = s3.properties()
    else:
        azure: Azurite = request.getfixturevalue("azurite")
        container = azure.create_container(name)
        found = AzurePlace(azure, Credentials(azure.properties()), container)
        scene.storage = azure.properties()
    scene.location = found.base
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed between copy and delete"])
def test_files_are_taken_and_moved(scene: Scene, place: Place, killed: bool) -> None:
    scene.prefix["after"] = "move"
    place.put("db/t/a b%20ü.ndjson", content=LARGE)
    if killed:
        with scene.writer.running():
            scene.killed_at("storage.copied")
    place.put("db/t/b.ndjson.gz", content=gzip.compress(LINE))
    place.put("db/t/bad.ndjson", content=b"BAD\n")

    scene.watch()

    assert sorted(scene.writer.written) == sorted([("db.t", LARGE), ("db.t", LINE)])
    assert place.names() == {
        "_done/db/t/a b%20ü.ndjson", "_done/db/t/b.ndjson.gz",
        "_failed/db/t/bad.ndjson", "_failed/db/t/bad.ndjson.error.json",
    }  # fmt: skip
    assert scene.sql("SELECT count(*) FROM ingest_files") == [(0,)]


def test_a_file_that_is_kept_is_taken_once(scene: Scene, place: Place) -> None:
    for _ in range(2):
        place.put("db/t/a.ndjson", content=LINE)
        scene.watch()
        scene.expire_keys()
    assert scene.writer.written == [("db.t", LINE)]


def test_a_store_that_refuses_says_so(s3_scene: Scene, seaweedfs: SeaweedFS) -> None:
    s3_scene.storage = {**seaweedfs.properties(), "s3.secret-access-key": "wrong"}
    with pytest.raises(StorageRefused):
        s3_scene.watch()


_DAG_PROCESS = """
import json, runpy, sys
from moraine.ingest.processes import watch_drops

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
        "[catalogs.demo]\nuri = 'http://127.0.0.1:1'\n"  # the watcher only names it
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
