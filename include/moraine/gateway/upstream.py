"""The catalogs behind the gateway, spoken to with the caller's own headers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from moraine.errors import MoraineError
from moraine.gateway.errors import BadAnswer, UpstreamSilent, UpstreamUnreachable
from moraine.gateway.routes import DEFAULT_SEPARATOR
from moraine.idempotency.model import Response
from moraine.settings import CatalogSettings, GatewaySettings

Headers = list[tuple[str, str]]

_OF_ONE_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The client library sends each of these by itself, or the connection decides about them.
_NOT_SENT_ON = _OF_ONE_HOP | {"host", "expect"}
# The server that answers the client writes its own.
_NOT_GIVEN_ON = _OF_ONE_HOP | {"date"}
_OF_A_BODY = frozenset({"content-length", "content-type", "content-encoding"})
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
# Servers close idle connections, many after five seconds: better to be first.
_IDLE_SECONDS = 4.0
_HEADER_BYTES = 64 << 10
_CHUNK = 64 << 10
_KEPT_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent, as far as it may be sent on."""

    method: str
    path: str
    """Percent-encoded, from `/v1/` on."""
    query: str
    headers: Headers = field(repr=False)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def without_headers(self, names: Iterable[str]) -> Request:
        dropped = frozenset(names)
        kept = [pair for pair in self.headers if pair[0] not in dropped]
        return Request(self.method, self.path, self.query, kept)

    def reading(self, path: str, query: str = "", **headers: str) -> Request:
        """A plain GET of something else, by the same caller."""
        dropped = _OF_A_BODY | _CONDITIONS | {"accept-encoding", "range", *headers}
        kept = [pair for pair in self.headers if pair[0] not in dropped]
        return Request("GET", path, query, [*kept, *headers.items()])


def sent_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """A client's headers, without those that are about its connection to us."""
    given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    dropped = _NOT_SENT_ON | _named_by_connection(given)
    return [pair for pair in given if pair[0] not in dropped]


def given_on(answer: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    """A catalog's headers, without those that are about its connection to us."""
    given = [(name.lower(), value) for name, value in answer.headers.items()]
    dropped = _NOT_GIVEN_ON | _named_by_connection(given)
    return tuple(pair for pair in given if pair[0] not in dropped)


def _given_unpacked(answer: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    given = given_on(answer)
    if not answer.headers.get("Content-Encoding"):
        return given
    return tuple(pair for pair in given if pair[0] not in ("content-encoding", "content-length"))


def _named_by_connection(headers: Headers) -> set[str]:
    named = (value for name, value in headers if name == "connection")
    return {word.strip().lower() for value in named for word in value.split(",")}


@dataclass(frozen=True, slots=True)
class Connections:
    """To all catalogs, for one process."""

    reading: aiohttp.ClientSession
    """Tries once more if the catalog had closed an idle connection."""
    writing: aiohttp.ClientSession
    """Sends everything once: whether to send it again, somebody else has to find out."""

    def for_method(self, method: str) -> aiohttp.ClientSession:
        return self.reading if method in ("GET", "HEAD", "OPTIONS") else self.writing


@asynccontextmanager
async def open_connections(settings: GatewaySettings) -> AsyncIterator[Connections]:
    connector = aiohttp.TCPConnector(
        limit=settings.max_connections, keepalive_timeout=_IDLE_SECONDS
    )

    def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            connector_owner=False,
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=settings.connect_timeout.total_seconds(),
                sock_read=settings.read_timeout.total_seconds(),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            read_bufsize=_CHUNK,
        )

    async with connector, session() as reading, session() as writing:
        # Otherwise it sends a DELETE a second time by itself.
        writing._retry_connection = False
        yield Connections(reading, writing)


class Upstream:
    """One catalog."""

    def __init__(self, name: str, settings: CatalogSettings, connections: Connections) -> None:
        self.name = name
        self.base = settings.uri.rstrip("/")
        self.warehouse = settings.warehouse
        self._connections = connections
        self._separator: str | None = None

    @asynccontextmanager
    async def open(
        self,
        request: Request,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        unpacked: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request on; its answer is read, or not, in the block."""
        url = f"{self.base}{request.path}{'?' if request.query else ''}{request.query}"
        data: Any = body
        if isinstance(body, bytes) and len(body) > _CHUNK:
            data = io.BytesIO(body)  # sent piece by piece, with other requests in between
        try:
            async with self._connections.for_method(request.method).request(
                request.method,
                URL(url, encoded=True),
                headers=request.headers,
                data=data,
                allow_redirects=False,
                auto_decompress=unpacked,
            ) as answer:
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise UpstreamUnreachable(
                f"The catalog {self.name!r} cannot be reached ({type(error).__name__})."
            ) from error
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            raise UpstreamSilent(f"The catalog {self.name!r} did not answer in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error.__cause__, MoraineError):
                raise error.__cause__ from None  # the body was not sent on to its end
            raise BadAnswer(
                f"The connection to the catalog {self.name!r} broke ({type(error).__name__})."
            ) from error

    async def fetch(self, request: Request, body: bytes | None = None) -> Response:
        """The answer in one piece; of a very large one only the beginning, with the rest to come.

        It comes unpacked, so that it can be looked into, even if the catalog packs it unasked.
        """
        plain = request.without_headers({"accept-encoding", "content-length"})
        opened = self.open(plain, body, unpacked=True)
        answer = await opened.__aenter__()
        try:
            content = bytearray()
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > _KEPT_AT_ONCE:
                    rest = _rest(answer, opened)
                    return Response(answer.status, _given_unpacked(answer), bytes(content), rest)
        except BaseException as error:
            if not await opened.__aexit__(type(error), error, error.__traceback__):
                raise
        await opened.__aexit__(None, None, None)
        return Response(answer.status, _given_unpacked(answer), bytes(content))

    async def read(self, request: Request) -> tuple[int, Any]:
        """The status and the JSON of an answer; None instead of JSON if it is none."""
        response = await self.fetch(request)
        body = response.body
        if response.rest is not None:
            body += b"".join([chunk async for chunk in response.rest])
        return response.status, await parse_json(body)

    async def separator(self, request: Request) -> str:
        """What joins a namespace's levels in paths, percent-encoded, as the catalog's clients
        were told."""
        if self._separator is None:
            status, config = await self.read(request.reading("/v1/config", self.config_query("")))
            if status != 200 or not isinstance(config, dict):
                return DEFAULT_SEPARATOR
            self.learn(config)
        return self._separator or DEFAULT_SEPARATOR

    def learn(self, config: Mapping[str, Any]) -> None:
        """Remember what a catalog says of itself."""
        layers = [config.get("defaults"), config.get("overrides")]
        known = {k: v for one in layers if isinstance(one, dict) for k, v in one.items()}
        self._separator = str(known.get("namespace-separator") or DEFAULT_SEPARATOR)

    def config_query(self, query: str) -> str:
        """The warehouse of the settings, for clients that name none."""
        if not self.warehouse or "warehouse=" in query:
            return query
        own = str(URL.build(query={"warehouse": self.warehouse}))[1:]
        return f"{query}&{own}" if query else own

    def is_own_address(self, uri: str) -> bool:
        """Whether an address leads past the gateway to this catalog."""
        given, own = urlsplit(uri), urlsplit(self.base)
        same_server = (given.scheme, given.netloc) == (own.scheme, own.netloc)
        return same_server and given.path.rstrip("/") == own.path.rstrip("/")


async def _rest(answer: aiohttp.ClientResponse, opened: Any) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    finally:
        await opened.__aexit__(None, None, None)


async def parse_json(body: bytes) -> Any:
    """Large documents are read beside the event loop's other work."""
    try:
        if len(body) > _CHUNK:
            return await asyncio.to_thread(json.loads, body)
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
