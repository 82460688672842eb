"""moto's S3 server, obeying lines on its standard input: see s3_servers."""

from __future__ import annotations

import logging
import sys

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

_ACCOUNT = "123456789012"


def main() -> None:
    logging.disable(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    for line in sys.stdin:
        _put(*line.split())
        print("done", flush=True)


def _put(bucket: str, file: str) -> None:
    """An empty object for each line of the file."""
    backend = s3_backends[_ACCOUNT]["aws"]
    if bucket not in backend.buckets:
        backend.create_bucket(bucket, "us-east-1")
    with open(file) as keys:
        for key in keys.read().splitlines():
            backend.put_object(bucket, key, b"")


if __name__ == "__main__":
    main()
