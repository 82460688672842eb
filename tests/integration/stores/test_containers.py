"""What the containers make at their start, on the S3 server that they have."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from support.seaweedfs import SeaweedFS

SCRIPT = Path(__file__).parents[3] / "docker/create_catalog.py"


def test_bucket_of_the_catalog_is_made_once(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(SCRIPT))
    own = seaweedfs.properties()
    monkeypatch.setenv("S3_URL", seaweedfs.endpoint)
    monkeypatch.setenv("S3_ACCESS_KEY", own["s3.access-key-id"])
    monkeypatch.setenv("S3_SECRET_KEY", own["s3.secret-access-key"])
    client = seaweedfs.client()
    for _ in range(2):  # the containers may be started again
        script["make_bucket"]()
        buckets = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
        assert buckets.count(script["BUCKET"]) == 1
        client.put_object(Bucket=script["BUCKET"], Key="kept", Body=b"x")
    assert seaweedfs.keys_in(script["BUCKET"]) == {"kept"}
