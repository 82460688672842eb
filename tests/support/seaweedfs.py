"""A real S3 with STS for tests: SeaweedFS, which checks signatures and session policies."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import jwt
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from moraine.local.part import find_free

LOOPBACK = "127.0.0.1"
REGION = "us-east-1"
ROLE_ARN = "arn:aws:iam::role/Vended"
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "s3.port.iceberg",
    "admin.port",
    "admin.port.grpc",
)
_OPTIONS = (
    "-master.telemetry=false",
    "-admin.ui=false",
    "-webdav=false",
    "-s3.port.lance=0",
    "-volume.max=500",
)
_SHORTEST_SESSION = 900
_SECONDS_TO_START = 60
_SECONDS_TO_STOP = 20


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What STS gives: keys that say no more than their session policy does, for a while."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime

    def properties(self) -> dict[str, str]:
        """As a catalog vends them."""
        return {
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.session-token": self.session_token,
            "s3.session-token-expires-at-ms": str(int(self.expires_at.timestamp() * 1000)),
        }


@dataclass(frozen=True, slots=True)
class SeaweedFS:
    port: int
    access_key: str = "admin"
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    signing_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    region: str = REGION
    role_arn: str = ROLE_ARN

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def place(self) -> dict[str, str]:
        """The properties that say where the store is, and none of the secret ones."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.path-style-access": "true",
            "client.region": self.region,
        }

    def properties(self) -> dict[str, str]:
        """The store and the keys of its administrator, as Iceberg's FileIO takes them."""
        return self.place() | {
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
        }

    def client(self, service: str = "s3", keys: SessionKeys | None = None) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=keys.access_key if keys else self.access_key,
            aws_secret_access_key=keys.secret_key if keys else self.secret_key,
            aws_session_token=keys.session_token if keys else None,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"max_attempts": 1},
                max_pool_connections=32,
            ),
        )

    def create_bucket(self, name: str) -> str:
        self.client().create_bucket(Bucket=name)
        return name

    def keys_in(self, bucket: str, prefix: str = "") -> set[str]:
        pages = self.client().get_paginator("list_objects_v2")
        return {
            item["Key"]
            for page in pages.paginate(Bucket=bucket, Prefix=prefix)
            for item in page.get("Contents", [])
        }

    def assume_role(self, policy: dict[str, Any] | None = None, seconds: int = 3600) -> SessionKeys:
        """Temporary keys that allow what the policy does, and nothing once their time is over."""
        answer = self.client("sts").assume_role(
            RoleArn=self.role_arn,
            RoleSessionName="tests",
            DurationSeconds=max(seconds, _SHORTEST_SESSION),
            **({"Policy": json.dumps(policy)} if policy else {}),
        )["Credentials"]
        expires_at, token = answer["Expiration"], answer["SessionToken"]
        if seconds < _SHORTEST_SESSION:
            # A token's end is in whole seconds.
            expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
            token = self._shorten(token, expires_at)
        return SessionKeys(answer["AccessKeyId"], answer["SecretAccessKey"], token, expires_at)

    def _shorten(self, token: str, expires_at: datetime) -> str:
        """STS gives no less than 15 minutes; what ends a session is in the token, which we sign."""
        claims = jwt.decode(token, self.signing_key, ["HS256"], options={"verify_aud": False})
        return jwt.encode(claims | {"exp": int(expires_at.timestamp())}, self.signing_key, "HS256")


def allow(actions: Iterable[str], bucket: str, *prefixes: str) -> dict[str, Any]:
    """A session policy: these actions on keys below these prefixes, and listing the bucket."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": list(actions),
                "Resource": [f"arn:aws:s3:::{bucket}/{prefix}*" for prefix in prefixes or ("",)],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:GetBucketLocation"],
                "Resource": [f"arn:aws:s3:::{bucket}"],
            },
        ],
    }


@contextlib.contextmanager
def running_seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    """A server of the caller's own, with its files and its log below the folder."""
    data = folder / "data"
    data.mkdir(parents=True)
    ports = dict(zip(_PORTS, find_free(len(_PORTS)), strict=True))
    server = SeaweedFS(ports["s3.port"])
    _write_private(folder / "s3.json", _identities(server))
    _write_private(folder / "iam.json", _roles(server))
    command = [
        str(Path(sys.executable).parent / "weed"),
        "mini",
        f"-dir={data}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        *_OPTIONS,
        *(f"-{name}={port}" for name, port in ports.items()),
        f"-s3.config={folder / 's3.json'}",
        f"-s3.iam.config={folder / 'iam.json'}",
        f"-s3.externalUrl={server.endpoint}",
    ]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait_until_ready(server, process, folder / "weed.log")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: SeaweedFS, process: subprocess.Popen[bytes], log: Path) -> None:
    """An open port is not enough: it is ready when it has kept a first object."""
    deadline = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            client = server.client()
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                server.create_bucket("ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                last_words = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"SeaweedFS did not start: {error}\n{last_words}") from error
            time.sleep(0.1)


def _identities(server: SeaweedFS) -> dict[str, Any]:
    keys = {"accessKey": server.access_key, "secretKey": server.secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "admin", "credentials": [keys], "actions": actions}]}


def _roles(server: SeaweedFS) -> dict[str, Any]:
    everything = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:*"],
                "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"],
            }
        ],
    }
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]},
        ],
    }
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "seaweedfs-sts",
            "signingKey": base64.b64encode(server.signing_key).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "Everything", "document": everything}],
        "roles": [
            {
                "roleName": ROLE_ARN.rpartition("/")[2],
                "roleArn": ROLE_ARN,
                "trustPolicy": trust,
                "attachedPolicies": ["Everything"],
            }
        ],
    }


def _write_private(path: Path, content: dict[str, Any]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
