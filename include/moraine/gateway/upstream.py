"""The catalogs behind the gateway, called with the caller's own headers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
from yarl import URL

from moraine.errors import MoraineError, TooManyRequests
from moraine.gateway.discovery import RECENT, DiscoveredPaths
from moraine.gateway.errors import (
    BadAnswer,
    CatalogBusy,
    UpstreamSilent,
    UpstreamTooLarge,
    UpstreamUnreachable,
    WrongWarehouse,
)
from moraine.http.limits import ByteBudget, LimitCounts
from moraine.iceberg.config import ServerConfig
from moraine.iceberg.endpoints import find_endpoint
from moraine.iceberg.paths import Address, CatalogPaths, Route, WrongPrefix, parse
from moraine.idempotency.model import Response
from moraine.settings import CatalogSettings, ClientTlsSettings, GatewaySettings
from moraine.settings.limits import GatewayLimitSettings
from moraine.tls.contexts import client_context
from moraine.tls.files import Renewed

Headers = list[tuple[str, str]]

_HOP_BY_HOP = frozenset(
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
# What proxies say about a client's certificate. From Moraine's address a catalog might believe it.
_CERTIFICATES = frozenset(
    {
        "client-cert",
        "client-cert-chain",
        "ssl-client-cert",
        "x-amzn-mtls-clientcert",
        "x-client-cert",
        "x-forwarded-client-cert",
        "x-forwarded-tls-client-cert",
        "x-ssl-client-cert",
    }
)
# The HTTP client sets these itself, or they depend on the connection; the cookies are Airflow's,
# which may be on the same host; and with the others a client could claim to be someone else, or ask
# for something else than what the gateway has checked.
_NOT_FORWARDED = (
    _HOP_BY_HOP
    | _CERTIFICATES
    | {
        "host",
        "expect",
        "cookie",
        "cookie2",
        "forwarded",
        "x-real-ip",
        "x-client-ip",
        "true-client-ip",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
    }
)
_CLAIMS_OF_PROXIES = "x-forwarded-"
# The server in front of the client sets its own date. The others act on a browser's whole origin,
# which may be Airflow's.
_NOT_RETURNED = _HOP_BY_HOP | {
    "date",
    "set-cookie",
    "set-cookie2",
    "clear-site-data",
    "strict-transport-security",
    "public-key-pins",
    "refresh",
    "service-worker-allowed",
    "content-security-policy",
    "content-security-policy-report-only",
    "x-content-type-options",
}
# A browser would render or run other types in Airflow's origin.
_HARMLESS_TYPES = frozenset({"application/json", "application/octet-stream", "text/plain"})
_BODY_HEADERS = frozenset({"content-length", "content-type", "content-encoding"})
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
# Many servers close idle connections after five seconds: close them first.
_IDLE_SECONDS = 4.0
_HEADER_BYTES = 64 << 10
_CHUNK = 64 << 10
_KEPT_AT_ONCE = 8 << 20
# Requested by clients before they know the prefix.
_UNPREFIXED = frozenset({("config",), ("oauth", "tokens")})

# Answers to a caller who is unknown or not allowed. 419 is Iceberg's own: the token has expired.
REFUSALS = frozenset({401, 403, 419})
# The catalog is overloaded or away, whatever the request.
AWAY = frozenset({429, 502, 503, 504})


class PassedOn(Exception):
    """The catalog refused the caller: its answer goes to the caller unchanged."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


@dataclass(frozen=True, slots=True)
class CatalogRequest:
    """A request to a catalog, with the headers of the client that may be forwarded."""

    method: str
    path: str
    """Percent-encoded, from `/v1/` on, in its canonical form."""
    query: str
    headers: Headers = field(repr=False)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def without_headers(self, names: Iterable[str]) -> CatalogRequest:
        dropped = frozenset(names)
        kept = [pair for pair in self.headers if pair[0] not in dropped]
        return CatalogRequest(self.method, self.path, self.query, kept)

    def reading(self, path: str, query: str = "", **headers: str) -> CatalogRequest:
        """A plain GET of another path, by the same caller."""
        dropped = _BODY_HEADERS | _CONDITIONS | {"accept-encoding", "range", *headers}
        kept = [pair for pair in self.headers if pair[0] not in dropped]
        return CatalogRequest("GET", path, query, [*kept, *headers.items()])


def forwarded_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """A client's headers, without those of its connection to the gateway."""
    given = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    dropped = _NOT_FORWARDED | _named_by_connection(given)
    return [
        pair
        for pair in given
        if pair[0] not in dropped and not pair[0].startswith(_CLAIMS_OF_PROXIES)
    ]


def returned_headers(answer: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    """A catalog's headers, without those of its connection to the gateway, and without what would
    have an effect on a browser that shows the answer."""
    given = [(name.lower(), value) for name, value in answer.headers.items()]
    dropped = _NOT_RETURNED | _named_by_connection(given)
    return tuple(
        (name, _harmless(value) if name == "content-type" else value)
        for name, value in given
        if name not in dropped
    )


def _harmless(content_type: str) -> str:
    kind, semicolon, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    is_json = kind.startswith("application/") and kind.endswith("+json")
    return (
        content_type if kind in _HARMLESS_TYPES or is_json else f"text/plain{semicolon}{parameters}"
    )


def _decompressed_headers(answer: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    given = returned_headers(answer)
    if not answer.headers.get("Content-Encoding"):
        return given
    return tuple(pair for pair in given if pair[0] not in ("content-encoding", "content-length"))


def _named_by_connection(headers: Headers) -> set[str]:
    named = (value for name, value in headers if name == "connection")
    return {word.strip().lower() for value in named for word in value.split(",")}


@dataclass(frozen=True, slots=True)
class Connections:
    """To all catalogs, shared by one process."""

    reading: aiohttp.ClientSession
    """Retries once if the catalog had closed an idle connection."""
    writing: aiohttp.ClientSession
    """Sends every request once: a retry is decided elsewhere, after a look at the catalog."""
    limits: GatewayLimitSettings
    counts: LimitCounts
    memory: ByteBudget

    def for_method(self, method: str) -> aiohttp.ClientSession:
        return self.reading if method in ("GET", "HEAD", "OPTIONS") else self.writing


@asynccontextmanager
async def open_connections(
    settings: GatewaySettings, counts: LimitCounts | None = None
) -> AsyncIterator[Connections]:
    limits, counts = settings.limits, counts or LimitCounts()
    memory = ByteBudget(limits.buffered_bytes, counts)
    connect = settings.connect_timeout.total_seconds()
    connector = aiohttp.TCPConnector(
        limit=settings.max_connections, keepalive_timeout=_IDLE_SECONDS
    )

    def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            connector_owner=False,
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=limits.connection_wait.total_seconds() + connect,
                sock_connect=connect,
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
        # Otherwise aiohttp retries a DELETE by itself.
        writing._retry_connection = False
        yield Connections(reading, writing, limits, counts, memory)


class Upstream:
    """One catalog."""

    def __init__(
        self,
        name: str,
        settings: CatalogSettings,
        connections: Connections,
        *,
        present_certificate: bool = False,
    ) -> None:
        self.name = name
        # A catalog that knows Moraine by its certificate would take every caller for Moraine.
        tls = settings.tls if present_certificate else ClientTlsSettings(ca=settings.tls.ca)
        self.base = settings.uri.rstrip("/")
        self.warehouse = settings.warehouse
        self._connections = connections
        self._tls = Renewed(tls, partial(client_context, tls)) if tls.enabled else None
        self._limits = connections.limits
        # Its own part of the connections: one slow catalog must not take those of all others.
        self._free = asyncio.Semaphore(self._limits.connections_per_catalog)
        # Of those, some for bodies that still arrive: the others are free as soon as the catalog
        # has answered, whatever the clients do.
        self._uploads = asyncio.Semaphore(max(1, self._limits.connections_per_catalog // 3))
        self.paths = DiscoveredPaths(name, settings)

    @asynccontextmanager
    async def open(
        self,
        request: CatalogRequest,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        decompressed: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Forward a request; the block reads the answer, or leaves it."""
        url = f"{self.base}{request.path}{'?' if request.query else ''}{request.query}"
        data: Any = body
        if isinstance(body, bytes) and len(body) > _CHUNK:
            data = io.BytesIO(body)  # sent in pieces, so that other requests get their turn
        try:
            async with (
                self._turn(body),
                self._connections.for_method(request.method).request(
                    request.method,
                    URL(url, encoded=True),
                    headers=request.headers,
                    data=data,
                    allow_redirects=False,
                    auto_decompress=decompressed,
                    ssl=self._tls.get() if self._tls else True,
                ) as answer,
            ):
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise UpstreamUnreachable(
                f"The catalog {self.name!r} cannot be reached ({type(error).__name__})."
            ) from error
        except aiohttp.ConnectionTimeoutError as error:
            # No connection, or none free: nothing was sent.
            raise UpstreamUnreachable(
                f"The catalog {self.name!r} cannot be reached in time."
            ) from error
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            raise UpstreamSilent(f"The catalog {self.name!r} did not answer in time.") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error.__cause__, MoraineError):
                raise error.__cause__ from None  # reading the client's body failed
            raise BadAnswer(
                f"The connection to the catalog {self.name!r} broke ({type(error).__name__})."
            ) from error

    @asynccontextmanager
    async def _turn(self, body: bytes | AsyncIterator[bytes] | None) -> AsyncIterator[None]:
        """Hold one of the catalog's connections; CatalogBusy is raised if none becomes free."""
        is_upload = body is not None and not isinstance(body, bytes)
        turns = (self._uploads, self._free) if is_upload else (self._free,)
        taken: list[asyncio.Semaphore] = []
        try:
            for turn in turns:
                await self._take(turn)
                taken.append(turn)
            yield
        finally:
            for turn in taken:
                turn.release()

    async def _take(self, turn: asyncio.Semaphore) -> None:
        if not turn.locked():
            await turn.acquire()
            return
        try:
            async with asyncio.timeout(self._limits.connection_wait.total_seconds()):
                await turn.acquire()
        except TimeoutError:
            self._connections.counts.add("connections")
            raise CatalogBusy(
                f"All connections to the catalog {self.name!r} are in use. Try again later."
            ) from None

    async def fetch(self, request: CatalogRequest, body: bytes | None = None) -> Response:
        """The whole answer; of a very large one only the beginning, with the rest as a stream.

        It is decompressed, so that it can be read, even if the catalog compresses it unasked.
        """
        plain = request.without_headers({"accept-encoding", "content-length"})
        content = bytearray()
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(self.open(plain, body, decompressed=True))
            headers = _decompressed_headers(answer)
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > _KEPT_AT_ONCE:
                    rest = _rest(answer, stack.pop_all())
                    return Response(answer.status, headers, bytes(content), rest)
        return Response(answer.status, headers, bytes(content))

    async def fetch_whole(self, request: CatalogRequest, body: bytes | None = None) -> Response:
        """The whole answer, however it was compressed, up to a limit."""
        response = await self.fetch(request, body)
        if response.rest is None:
            return response
        max_bytes, held = self._limits.answer_bytes, 0
        content = bytearray(response.body)
        with self._connections.memory.holding() as hold:
            async with aclosing(response.rest) as rest:
                async for chunk in rest:
                    content += chunk
                    if len(content) > max_bytes:
                        raise UpstreamTooLarge(
                            f"An answer of the catalog {self.name!r} is larger than {max_bytes} "
                            "bytes, which is gateway.limits.answer-bytes."
                        )
                    self._hold(hold, len(content) - held)
                    held = len(content)
        return Response(response.status, response.headers, bytes(content))

    def _hold(self, hold: Callable[[int], None], size: int) -> None:
        """Not a 429: that would say that the request was not carried out."""
        try:
            hold(size)
        except TooManyRequests:
            raise CatalogBusy(
                f"There is no memory for a large answer of the catalog {self.name!r} now. Try "
                "again later."
            ) from None

    async def route(self, method: str, address: Address) -> Route:
        """What a request is about. Raises WrongPrefix for a path of another catalog."""
        if address.segments in _UNPREFIXED:
            endpoint = find_endpoint(method, address.segments)
            return Route(method, address.path, endpoint=endpoint)
        try:
            return parse(method, address, await self.paths.get())
        except WrongPrefix:
            return parse(method, address, await self.paths.get(RECENT))

    async def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise WrongPrefix for a configuration with paths that are not served here."""
        properties = ServerConfig.from_json(config).merged({})
        prefix = CatalogPaths.of(properties.get("prefix") or "", "").prefix
        if prefix != (await self.paths.get()).prefix:
            paths = await self.paths.get(RECENT)
            if prefix != paths.prefix:
                raise WrongPrefix(paths)

    def config_query(self, query: str) -> str:
        """With the warehouse of the settings, the only one that is served."""
        if not self.warehouse:
            return query
        given = parse_qsl(query, keep_blank_values=True)
        if any(name == "warehouse" and value not in ("", self.warehouse) for name, value in given):
            raise WrongWarehouse(
                f"Only the warehouse {self.warehouse!r} is served here. Ask for that one, or for "
                "none."
            )
        others = [pair for pair in given if pair[0] != "warehouse"]
        return urlencode([*others, ("warehouse", self.warehouse)])

    def is_own_address(self, uri: str) -> bool:
        """Whether an address leads past the gateway to this catalog."""
        given, own = urlsplit(uri), urlsplit(self.base)
        same_server = (given.scheme, given.netloc) == (own.scheme, own.netloc)
        return same_server and given.path.rstrip("/") == own.path.rstrip("/")


async def _rest(
    answer: aiohttp.ClientResponse, opened: AsyncExitStack
) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    finally:
        await opened.aclose()


async def parse_json(body: bytes) -> Any:
    """None if it is not JSON. Large documents are parsed in a thread, not in the event loop."""
    try:
        if len(body) > _CHUNK:
            return await asyncio.to_thread(json.loads, body)
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
