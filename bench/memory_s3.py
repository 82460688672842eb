"""An S3 server that costs as little as possible: what is measured against it is the client.

Objects are bytes in a dictionary. It answers the requests that Iceberg, obstore and Spark send:
PUT, GET (also of a range), HEAD, DELETE, DeleteObjects and ListObjectsV2. It checks no signature
and keeps nothing on disk. Every key of a bulk delete is parsed, looked up, removed, and answered
for by name, as S3 does unless it is asked to be quiet.

It prints its port, and then obeys lines on its standard input: see s3_servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from typing import ClassVar, cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import httptools
import uvloop

_KEY = re.compile(rb"<Key>([^<]*)</Key>")
_RANGE = re.compile(rb"bytes=(\d*)-(\d*)")
_ENTITIES = {"&quot;": '"', "&apos;": "'", "&#13;": "\r", "&#10;": "\n"}
_DATE = b"Thu, 01 Jan 2026 00:00:00 GMT"
_MOST_LISTED = 1000
_REASONS = {
    200: b"OK",
    204: b"No Content",
    206: b"Partial Content",
    404: b"Not Found",
    416: b"Range Not Satisfiable",
}


class _Connection(asyncio.Protocol):
    buckets: ClassVar[dict[str, dict[str, bytes]]] = defaultdict(dict)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # --- What the parser tells ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect"):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parts = urlsplit(self._url.decode())
        method = self._parser.get_method().decode()
        body = b"".join(self._body)
        bucket, _, key = unquote(parts.path)[1:].partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if key:
            self._serve_object(method, self.buckets[bucket], key, body)
        elif method == "POST" and "delete" in query:
            self._delete_many(self.buckets[bucket], body)
        elif method == "GET":
            self._list(bucket, query)
        else:
            self._answer(200)

    # --- Answers -----------------------------------------------------------------------------

    def _serve_object(self, method: str, objects: dict[str, bytes], key: str, body: bytes) -> None:
        if method == "PUT":
            objects[key] = content = self._decoded(body)
            self._answer(200, headers=_etag(content))
        elif method == "DELETE":
            objects.pop(key, None)
            self._answer(204)
        elif (content := objects.get(key)) is None:
            missing = b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>"
            self._answer(404, b"" if method == "HEAD" else missing)
        elif method == "HEAD":
            self._answer(200, headers=_etag(content), length=len(content))
        else:
            self._send(content)

    def _send(self, content: bytes) -> None:
        asked = _RANGE.match(self._headers.get(b"range", b""))
        if asked is None:
            self._answer(200, content, _etag(content))
            return
        first, last = asked.groups()
        size = len(content)
        start = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if start >= end:
            self._answer(416, headers=b"Content-Range: bytes */%d\r\n" % size)
            return
        place = b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, size)
        self._answer(206, content[start:end], place + _etag(content))

    def _delete_many(self, objects: dict[str, bytes], body: bytes) -> None:
        written = _KEY.findall(body)
        for key in written:
            name = key.decode()
            objects.pop(unescape(name, _ENTITIES) if "&" in name else name, None)
        told = b""
        if b"<Quiet>true</Quiet>" not in body:
            told = b"".join([b"<Deleted><Key>%b</Key></Deleted>" % key for key in written])
        self._answer(200, _xml(b"DeleteResult", told))

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        names = sorted(key for key in self.buckets[bucket] if key.startswith(prefix))
        names = names[bisect_right(names, after) :]
        page = names[:_MOST_LISTED]
        items = [
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.buckets[bucket][name])}</Size>"
            '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"0"</ETag></Contents>'
            for name in page
        ]
        more = len(names) > len(page)
        items.append(f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}")
        items.append("</IsTruncated>")
        if more:
            items.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        self._answer(200, _xml(b"ListBucketResult", "".join(items).encode()))

    def _decoded(self, body: bytes) -> bytes:
        """Some clients send a body in chunks of the protocol's own, with a checksum behind."""
        if b"aws-chunked" not in self._headers.get(b"content-encoding", b""):
            return body
        chunks, at = [], 0
        while True:
            end = body.index(b"\r\n", at)
            size = int(body[at:end].split(b";")[0], 16)
            if not size:
                return b"".join(chunks)
            chunks.append(body[end + 2 : end + 2 + size])
            at = end + 2 + size + 2

    def _answer(
        self, status: int, body: bytes = b"", headers: bytes = b"", length: int | None = None
    ) -> None:
        size = len(body) if length is None else length
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\nLast-Modified: %b\r\n%b\r\n%b"
            % (status, _REASONS[status], size, _DATE, headers, body)
        )


def _etag(content: bytes) -> bytes:
    return b'ETag: "%b"\r\n' % hashlib.md5(content).hexdigest().encode()


def _xml(name: bytes, content: bytes) -> bytes:
    return b'<?xml version="1.0" encoding="UTF-8"?><%b>%b</%b>' % (name, content, name)


def _obey() -> None:
    """`BUCKET FILE`: the bucket gets an empty object for each line of the file."""
    for line in sys.stdin:
        bucket, file = line.split()
        with open(file) as keys:
            _Connection.buckets[bucket].update(dict.fromkeys(keys.read().splitlines(), b""))
        print("done", flush=True)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    threading.Thread(target=_obey, daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve())
