"""The gateway: every route of the Iceberg REST spec, mutations through the layer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.types import Receive, Scope, Send

from moraine.api.body import read_bounded
from moraine.errors import BadRequest, LedgerUnavailable, MoraineError, PayloadTooLarge
from moraine.gateway.config import advertise, keep_clients_here
from moraine.gateway.drop import DelegatedDrop, PurgeDesk
from moraine.gateway.errors import CatalogUnknown, NameTaken, TableHidden, error_response
from moraine.gateway.hiding import HiddenTables, without_hidden
from moraine.gateway.intents import MalformedBody, intent_of
from moraine.gateway.model import Operation, Target
from moraine.gateway.mutations import CatalogMutation, PassedOn
from moraine.gateway.routes import Route, parse
from moraine.gateway.upstream import Request, Upstream, given_on, parse_json, sent_on
from moraine.idempotency import key as keys
from moraine.idempotency.asgi import respond
from moraine.idempotency.fingerprint import fingerprint
from moraine.idempotency.layer import Layer
from moraine.idempotency.model import Response
from moraine.idempotency.model import Scope as KeyScope
from moraine.log import get_logger
from moraine.settings import Settings

log = get_logger(__name__)

MOUNT_PATH = "/catalog"
_KEY = keys.HEADER.lower()
_PING_SECONDS = 1.0
_SMALL = 64 << 10
# The names they make must be free.
_NAMING = frozenset(
    {
        Operation.CREATE_TABLE,
        Operation.REGISTER_TABLE,
        Operation.CREATE_VIEW,
        Operation.REGISTER_VIEW,
    }
)
_RENAMING = frozenset({Operation.RENAME_TABLE, Operation.RENAME_VIEW})


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way through."""

    route: Route
    upstream: Upstream
    request: Request
    base: str
    """How the client calls this catalog."""
    has_body: bool
    receive: Receive
    send: Send

    async def body(self, most_bytes: int) -> bytes:
        length = self.request.header("content-length") or ""
        return await read_bounded(self.receive, length, most_bytes)


class Gateway:
    def __init__(
        self,
        settings: Settings,
        upstreams: Mapping[str, Upstream],
        layer: Layer,
        desk: PurgeDesk,
    ) -> None:
        self._settings = settings
        self._gateway = settings.gateway
        self._keys = settings.idempotency
        self._upstreams = upstreams
        self._layer = layer
        self._desk = desk
        self._hidden: HiddenTables = desk.hidden
        only = next(iter(upstreams)) if len(upstreams) == 1 else ""
        self._default = settings.gateway.default_catalog or only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_once(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._serve(self._call(scope, receive, send_once))
        except PassedOn as refusal:
            await respond(send, refusal.response)
        except MoraineError as error:
            if started:
                # The client sees that the answer was cut: the connection ends before it does.
                log.warning("gateway.cut", path=scope["path"], error=error.code)
                return
            await respond(send, error_response(error))
        except Exception as error:
            if started:
                raise
            log.exception("gateway.unexpected", path=scope["path"], error=type(error).__name__)
            await respond(send, error_response(MoraineError()))

    def _call(self, scope: Scope, receive: Receive, send: Send) -> Call:
        root = scope.get("root_path", "")
        path = scope["raw_path"].decode("latin-1").removeprefix(quote(root))
        route = parse(scope["method"], path)
        name = self._default if route.catalog is None else route.catalog
        if name not in self._upstreams:
            raise CatalogUnknown(
                f"The gateway knows no catalog {name!r}."
                if name
                else "Name the catalog in the path: /catalog/NAME/v1/…; there is no default."
            )
        headers = sent_on(scope["headers"])
        query = scope["query_string"].decode("latin-1")
        request = Request(scope["method"], route.path, query, headers)
        own = self._gateway.public_uri.rstrip("/") or _own_address(scope, root)
        base = f"{own}/{quote(route.catalog, safe='')}" if route.catalog else own
        has_body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )
        return Call(route, self._upstreams[name], request, base, has_body, receive, send)

    async def _serve(self, call: Call) -> None:
        route, catalog = call.route, call.upstream.name
        if route.is_config:
            return await respond(call.send, await self._config(call))
        if route.operation is not None:
            return await self._mutate(call)
        if self._hidden.any_in(catalog) and route.namespace:
            separator = await call.upstream.separator(call.request)
            self._refuse_hidden(catalog, route.target(separator))
            if route.lists_tables:
                return await respond(call.send, await self._list(call))
        await self._pass(call)

    # --- Reading ----------------------------------------------------------------------------

    async def _config(self, call: Call) -> Response:
        upstream, request = call.upstream, call.request
        query = upstream.config_query(request.query)
        response = await upstream.fetch(Request("GET", request.path, query, request.headers))
        config = await parse_json(response.body)
        if response.status != 200 or not isinstance(config, dict):
            return response
        upstream.learn(config)
        config = keep_clients_here(config, upstream.is_own_address, call.base)
        if await self._keys_are_understood():
            config = advertise(config, self._keys.lifetime)
        return _changed(response, config)

    async def _keys_are_understood(self) -> bool:
        if not self._keys.enabled:
            return False
        try:
            await asyncio.wait_for(self._layer.store.ping(), _PING_SECONDS)
        except (LedgerUnavailable, TimeoutError):
            return False
        return True

    async def _list(self, call: Call) -> Response:
        response = await call.upstream.fetch(call.request)
        listing = await parse_json(response.body)
        if response.status != 200 or not isinstance(listing, dict):
            return response
        return _changed(response, without_hidden(listing, self._hidden, call.upstream.name))

    async def _pass(self, call: Call, body: bytes | None = None) -> None:
        """Send the request on as it comes in, and the answer as it comes back."""
        content: bytes | AsyncIterator[bytes] | None = body
        if body is None and call.has_body:
            content = _chunks(call.receive, self._gateway.max_body_bytes)
        async with call.upstream.open(call.request, content) as answer:
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in given_on(answer)]
            start = {"type": "http.response.start", "status": answer.status, "headers": headers}
            length = answer.content_length
            if length is not None and length <= _SMALL:
                whole = await answer.read()
                await call.send(start)
                await call.send({"type": "http.response.body", "body": whole})
                return
            await call.send(start)
            async for chunk in answer.content.iter_any():
                await call.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await call.send({"type": "http.response.body", "body": b""})

    # --- Changing ---------------------------------------------------------------------------

    async def _mutate(self, call: Call) -> None:
        request = call.request
        key = None
        if self._keys.enabled:
            given = [value for name, value in request.headers if name == _KEY]
            key = keys.parse_key(given, self._keys.key_format)
        purges = self._purges(call)
        if key is None and not purges and not self._hidden.any_in(call.upstream.name):
            return await self._pass(call)
        body = await call.body(self._gateway.max_body_bytes) if call.has_body else b""
        document = await parse_json(body) if body else {}
        if not isinstance(document, dict):
            document = {}
        if not purges:
            await self._refuse_hidden_targets(call, document)
        if key is not None:
            call = _without_key(call)
        if (key is None and not purges) or document.get("stage-create") is True:
            # A staged table is only worked out, not made: there is nothing to do twice.
            return await self._pass(call, body)
        mutation = self._mutation(call, key or "", body, document, purges)
        try:
            if key is None:
                response = await mutation.execute(await mutation.intent())
            else:
                response = await self._layer.handle(mutation)
        except MalformedBody as error:
            # A catalog may take it all the same; but then nobody could tell whether it did.
            raise BadRequest(
                f"With an Idempotency-Key the body must be as the spec says. {error}."
            ) from None
        await respond(call.send, response)

    def _mutation(
        self, call: Call, key: str, body: bytes, document: Mapping[str, Any], purges: bool
    ) -> CatalogMutation:
        route, request = call.route, call.request
        path = f"{MOUNT_PATH}/{quote(call.upstream.name, safe='')}{route.normal_path}"
        scope = KeyScope(self._settings.realm, route.method, path, key)
        kind = DelegatedDrop if purges else CatalogMutation
        mutation = kind(
            scope,
            fingerprint(body, request.query),
            route,
            call.upstream,
            request,
            body,
            document,
        )
        if isinstance(mutation, DelegatedDrop):
            mutation.desk = self._desk
        return mutation

    def _purges(self, call: Call) -> bool:
        if call.route.operation is not Operation.DROP_TABLE:
            return False
        asked = parse_qs(call.request.query).get("purgeRequested", ["false"])[-1]
        return asked.lower() == "true" and self._gateway.purge.task_type == "delegated"

    async def _refuse_hidden_targets(self, call: Call, document: Mapping[str, Any]) -> None:
        """A hidden table cannot be changed, nor can its name be taken."""
        catalog, operation = call.upstream.name, call.route.operation
        if not self._hidden.any_in(catalog) or operation is None:
            return
        separator = await call.upstream.separator(call.request)
        try:
            targets = intent_of(operation, call.route.target(separator), document).targets
        except MalformedBody:
            return
        taken = targets if operation in _NAMING else targets[1:] if operation in _RENAMING else ()
        for target in targets:
            if target in taken and self._hidden.hides(catalog, target):
                raise NameTaken(
                    f"A table {target} is being purged; wait until it is gone, or use another name."
                )
            self._refuse_hidden(catalog, target)

    def _refuse_hidden(self, catalog: str, target: Target) -> None:
        if self._hidden.hides(catalog, target):
            raise TableHidden(f"Table does not exist: {target}")


async def _chunks(receive: Receive, most_bytes: int) -> AsyncIterator[bytes]:
    """A request's body on its way through, up to a limit."""
    seen, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("The caller hung up before the body was complete.")
        chunk = message.get("body", b"")
        seen += len(chunk)
        if seen > most_bytes:
            raise PayloadTooLarge(f"The body is larger than {most_bytes} bytes.")
        more = message.get("more_body", False)
        if chunk:
            yield chunk


def _own_address(scope: Scope, root: str) -> str:
    host = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"host"), "")
    return f"{scope['scheme']}://{host}{quote(root)}"


def _without_key(call: Call) -> Call:
    """The key is the gateway's affair: a catalog with keys of its own may bind it to less."""
    return replace(call, request=call.request.without_headers({_KEY}))


def _changed(response: Response, document: Mapping[str, Any]) -> Response:
    """The same answer with another body. Its tag was that of the old one."""
    headers = tuple(pair for pair in response.headers if pair[0] not in ("content-length", "etag"))
    return Response(response.status, headers, json.dumps(document).encode())
