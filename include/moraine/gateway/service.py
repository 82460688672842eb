"""The gateway: what happens to a request, in which order. HTTP itself is in `routes`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, quote

from moraine.access.authenticator import claimed_principal
from moraine.access.guard import Guard
from moraine.access.model import Caller, Principal
from moraine.drops.hiding import HiddenTables, without_hidden
from moraine.errors import BadRequest, LedgerUnavailable, MoraineError
from moraine.gateway.bodies import MalformedBody
from moraine.gateway.drop import DelegatedDrop, PurgeDesk
from moraine.gateway.errors import CatalogUnknown, NameTaken, TableHidden
from moraine.gateway.intake import (
    BodyReader,
    Content,
    IncomingBody,
    in_thread_if_large,
    refuse_compressed,
)
from moraine.gateway.intents import intent_of
from moraine.gateway.model import GATEWAY_PATH
from moraine.gateway.mutations import CatalogMutation
from moraine.gateway.upstream import CatalogRequest, Upstream, parse_json
from moraine.http import keys
from moraine.iceberg.config import with_lifetime, with_uri
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import Identifier
from moraine.iceberg.paths import Route
from moraine.idempotency.model import Response, Scope
from moraine.idempotency.service import Layer
from moraine.settings import Settings

_KEY = keys.HEADER.lower()
_PING_SECONDS = 1.0
# They take a new name, which must be free.
_NAMING = frozenset(
    {
        Endpoint.CREATE_TABLE,
        Endpoint.REGISTER_TABLE,
        Endpoint.CREATE_VIEW,
        Endpoint.REGISTER_VIEW,
    }
)
_RENAMING = frozenset({Endpoint.RENAME_TABLE, Endpoint.RENAME_VIEW})
_NAMED_IN_BODY = _NAMING | _RENAMING | {Endpoint.COMMIT_TRANSACTION}


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the gateway."""

    route: Route
    upstream: Upstream
    request: CatalogRequest
    caller: Caller
    known: Principal | None
    """The caller, if Moraine checks tokens before the catalog does."""
    base: str
    """The client's address for this catalog."""
    body: IncomingBody


@dataclass(frozen=True, slots=True)
class Forward:
    """The decision to forward a request, and to return the catalog's answer unchanged."""

    request: CatalogRequest
    body: bytes | None = None
    """None: as it comes in."""


class Gateway:
    def __init__(
        self,
        settings: Settings,
        upstreams: Mapping[str, Upstream],
        layer: Layer,
        desk: PurgeDesk,
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._settings = settings
        self._keys = settings.idempotency
        self._upstreams = upstreams
        self._layer = layer
        self._bodies = BodyReader(settings.gateway)
        self._desk = desk
        self._hidden: HiddenTables = desk.hidden
        only = next(iter(upstreams)) if len(upstreams) == 1 else ""
        self._default = settings.gateway.default_catalog or only

    def find(self, name: str | None) -> Upstream:
        """The catalog of that name; None is the default catalog."""
        name = self._default if name is None else name
        if name not in self._upstreams:
            raise CatalogUnknown(
                f"The gateway knows no catalog {name!r}."
                if name
                else "Name the catalog in the path: /catalog/NAME/v1/…; there is no default."
            )
        return self._upstreams[name]

    async def identify(self, caller: Caller) -> Principal | None:
        """The caller, where the settings require that Moraine knows it."""
        if not self._settings.gateway.require_token:
            return None
        return await self._guard.identify(caller)

    async def serve(self, call: Call) -> Response | Forward:
        endpoint, catalog = call.route.endpoint, call.upstream.name
        if endpoint is Endpoint.GET_CONFIG:
            return await self._config(call)
        if endpoint is not None and endpoint.mutates:
            return await self._mutate(call)
        if self._hidden.any_in(catalog):
            self._refuse_hidden(catalog, call.route.target)
            if endpoint is Endpoint.LIST_TABLES:
                return await self._list(call)
        return Forward(call.request)

    # --- Reads ------------------------------------------------------------------------------

    async def _config(self, call: Call) -> Response:
        upstream, request = call.upstream, call.request
        query = upstream.config_query(request.query)
        asking = CatalogRequest("GET", request.path, query, request.headers)
        response = await upstream.fetch_whole(asking)
        config = await parse_json(response.body)
        if response.status != 200 or not isinstance(config, dict):
            return response
        await upstream.check_config(config)
        # Some catalogs advertise their own address: clients would bypass the gateway.
        config = with_uri(config, call.base, upstream.is_own_address)
        if await self._keys_are_supported():
            config = with_lifetime(config, self._keys.lifetime)
        answer = _changed(response, config)
        # It may have the address that this client used, which a cache must not give to others.
        return answer.with_header("cache-control", "no-store")

    async def _keys_are_supported(self) -> bool:
        if not self._keys.enabled:
            return False
        try:
            await asyncio.wait_for(self._layer.store.ping(), _PING_SECONDS)
        except (LedgerUnavailable, TimeoutError):
            return False
        return True

    async def _list(self, call: Call) -> Response:
        response = await call.upstream.fetch_whole(call.request)
        listing = await parse_json(response.body)
        if response.status != 200 or not isinstance(listing, dict):
            return response
        return _changed(response, without_hidden(listing, self._hidden, call.upstream.name))

    # --- Mutations --------------------------------------------------------------------------

    async def _mutate(self, call: Call) -> Response | Forward:
        key = self._key_of(call.request)
        if call.body.is_present:
            refuse_compressed(call.request)
        if self._is_delegated_drop(call):
            return await self._drop_and_purge(call, key, self._principal(call))
        if key is None:
            return await self._mutate_without_key(call)
        return await self._mutate_with_key(call, key, self._principal(call))

    def _principal(self, call: Call) -> Principal:
        """The caller, or what its token claims. The catalog judges that token: nothing is done, and
        no kept answer given, for a caller whom the catalog refuses."""
        if call.known is not None:
            return call.known
        issuer = f"catalog:{call.upstream.name}"
        return claimed_principal(self._settings.realm, issuer, call.caller)

    async def _drop_and_purge(self, call: Call, key: str | None, principal: Principal) -> Response:
        call = _without_key(call, key)
        content = await self._read(call, key)
        scope = self._scope(call, key, principal)
        drop = DelegatedDrop(
            self._desk, scope, call.route, call.upstream, call.request, content, principal
        )
        await drop.authorize()
        if key is None:
            return await drop.execute(await drop.intent())
        return await self._layer.handle(drop)

    async def _mutate_without_key(self, call: Call) -> Forward:
        catalog = call.upstream.name
        if call.route.endpoint not in _NAMED_IN_BODY or not self._hidden.any_in(catalog):
            self._refuse_hidden(catalog, call.route.target)
            return Forward(call.request)
        content = await self._read(call, None)
        await self._refuse_hidden_targets(call, content)
        return Forward(call.request, content.body)

    async def _mutate_with_key(
        self, call: Call, key: str, principal: Principal
    ) -> Response | Forward:
        call = _without_key(call, key)
        content = await self._read(call, key)
        scope = self._scope(call, key, principal)
        refusal = await self._refusal(call, scope, content)
        if _is_staged(call, content):
            # A staged table is not created, so nothing can happen twice.
            return Forward(call.request, content.body)
        mutation = CatalogMutation(scope, call.route, call.upstream, call.request, content, refusal)
        try:
            return await self._layer.handle(mutation)
        except MalformedBody as error:
            # The catalog may accept it, but then no check could tell whether it was applied.
            raise BadRequest(
                f"With an Idempotency-Key the body must be as the spec says. {error}."
            ) from None

    def _key_of(self, request: CatalogRequest) -> str | None:
        given = [value for name, value in request.headers if name == _KEY]
        return keys.parse_key(given, self._keys.key_format) if self._keys.enabled else None

    def _is_delegated_drop(self, call: Call) -> bool:
        if call.route.endpoint is not Endpoint.DROP_TABLE:
            return False
        asked = parse_qs(call.request.query).get("purgeRequested", ["false"])[-1]
        return asked.lower() == "true" and self._settings.gateway.purge.task_type == "delegated"

    async def _read(self, call: Call, key: str | None) -> Content:
        keyed = key is not None
        if not keyed and not call.body.is_present:
            return Content()
        return await self._bodies.read(call.upstream, call.request, call.body, keyed=keyed)

    def _scope(self, call: Call, key: str | None, principal: Principal) -> Scope:
        path = f"{GATEWAY_PATH}/{quote(call.upstream.name, safe='')}{call.route.path}"
        return Scope(principal.realm, principal.name, call.route.method, path, key or "")

    # --- Hidden tables ----------------------------------------------------------------------

    async def _refusal(self, call: Call, scope: Scope, content: Content) -> MoraineError | None:
        """A hidden table cannot be changed, nor can its name be taken. But a key that was used
        before the table was hidden may have an outcome: then the layer decides."""
        try:
            await self._refuse_hidden_targets(call, content)
        except (TableHidden, NameTaken) as refusal:
            if await self._layer.store.find(scope) is None:
                raise
            return refusal
        return None

    async def _refuse_hidden_targets(self, call: Call, content: Content) -> None:
        catalog, endpoint = call.upstream.name, call.route.endpoint
        if not self._hidden.any_in(catalog) or endpoint is None:
            return
        try:
            size, document = len(content.body), content.document
            target = call.route.target
            intent = await in_thread_if_large(size, intent_of, endpoint, target, document)
        except MalformedBody:
            return
        targets = intent.targets
        taken = targets if endpoint in _NAMING else targets[1:] if endpoint in _RENAMING else ()
        for target in targets:
            if target in taken and self._hidden.hides(catalog, target):
                raise NameTaken(
                    f"A table {target} is being purged; wait until it is gone, or use another name."
                )
            self._refuse_hidden(catalog, target)

    def _refuse_hidden(self, catalog: str, target: Identifier) -> None:
        if self._hidden.hides(catalog, target):
            raise TableHidden(f"Table does not exist: {target}")


def _without_key(call: Call, key: str | None) -> Call:
    """The catalog does not get the key: one with keys of its own may bind it to less."""
    return call if key is None else replace(call, request=call.request.without_headers({_KEY}))


def _is_staged(call: Call, content: Content) -> bool:
    is_create = call.route.endpoint is Endpoint.CREATE_TABLE
    return is_create and content.document.get("stage-create") is True


def _changed(response: Response, document: Mapping[str, Any]) -> Response:
    """The same answer with another body. The etag was that of the old body."""
    headers = tuple(pair for pair in response.headers if pair[0] not in ("content-length", "etag"))
    return Response(response.status, headers, json.dumps(document).encode())
