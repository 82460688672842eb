"""boto3 clients that do not try again, so that a test sees each answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def open_client(properties: Mapping[str, str]) -> Any:
    """A client with the properties that catalogs vend."""
    return boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        region_name=properties["client.region"],
        aws_access_key_id=properties["s3.access-key-id"],
        aws_secret_access_key=properties["s3.secret-access-key"],
        aws_session_token=properties.get("s3.session-token"),
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1, "mode": "standard"},
            read_timeout=20,
        ),
    )


def delete(client: Any, bucket: str, *keys: str) -> dict[str, str]:
    """One DeleteObjects; the error codes of the keys that were not deleted."""
    objects = [{"Key": key} for key in keys]
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    return {error["Key"]: error["Code"] for error in answer.get("Errors", [])}


def code_of(error: ClientError) -> tuple[int, str]:
    answer = error.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]
