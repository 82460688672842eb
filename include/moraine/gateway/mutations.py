"""A keyed mutation of a catalog: sent on as it came, looked up when its outcome is unknown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moraine.gateway.checks import answer_of, check
from moraine.gateway.errors import UpstreamUnreachable
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Kind, Operation, State, Target, Verdict
from moraine.gateway.routes import Route, whole_query
from moraine.gateway.upstream import Request, Upstream, parse_json
from moraine.idempotency.layer import (
    Applied,
    Finding,
    Incompatible,
    Mutation,
    NotApplied,
    ReplayFailed,
)
from moraine.idempotency.model import Record, Response, Scope

# What of a kept answer's headers is true of a replay as well.
_KEPT_HEADERS = frozenset({"content-type", "etag", "last-modified", "content-language"})
_SECRETS = ("config", "storage-credentials")
_JSON = ("content-type", "application/json")
# Their outcome can only be told by who knows what was there before.
_LOOK_FIRST = frozenset(
    {
        Operation.CREATE_NAMESPACE,
        Operation.DROP_NAMESPACE,
        Operation.CREATE_TABLE,
        Operation.DROP_TABLE,
        Operation.RENAME_TABLE,
        Operation.CREATE_VIEW,
        Operation.DROP_VIEW,
        Operation.RENAME_VIEW,
    }
)
_WITH_CREDENTIALS = frozenset(
    {
        Operation.CREATE_TABLE,
        Operation.REGISTER_TABLE,
        Operation.CREATE_VIEW,
        Operation.REGISTER_VIEW,
        Operation.REPLACE_VIEW,
    }
)
_UUIDS = {Kind.TABLE: "table-uuid", Kind.VIEW: "view-uuid"}


class PassedOn(Exception):
    """The catalog turned the caller away: its own words are the answer."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class CatalogReader:
    """Looks at a catalog with one caller's credentials."""

    def __init__(self, upstream: Upstream, route: Route, request: Request) -> None:
        self._upstream = upstream
        self._route = route
        self._request = request

    async def load(self, target: Target, query: str | None = None) -> Mapping[str, Any] | None:
        """What the catalog says of something; None if it has no such thing."""
        separator = await self._upstream.separator(self._request)
        path = self._route.path_of(target, separator)
        query = whole_query(target.kind) if query is None else query
        response = await self._upstream.fetch(self._request.reading(path, query))
        body = response.body
        if response.rest is not None:
            body += b"".join([chunk async for chunk in response.rest])
        if response.status in (401, 403, 419):
            raise PassedOn(response)
        document = await parse_json(body)
        if response.status == 404 and _says_it_is_not_there(document):
            return None
        if response.status != 200 or not isinstance(document, dict):
            raise UpstreamUnreachable(
                f"The catalog answered {response.status} when it was asked for {target}, so it "
                "cannot be told whether the request was carried out."
            )
        return document

    async def load_all(self, intent: Intent) -> State:
        return {target: await self.load(target) for target in intent.targets}


class CatalogMutation(Mutation):
    def __init__(
        self,
        scope: Scope,
        payload_hash: str,
        route: Route,
        upstream: Upstream,
        request: Request,
        body: bytes,
        document: Mapping[str, Any],
    ) -> None:
        assert route.operation is not None
        self.scope = scope
        self.payload_hash = payload_hash
        self.looks_first = route.operation in _LOOK_FIRST
        self._operation = route.operation
        self._route = route
        self._upstream = upstream
        self._request = request
        self._body = body
        self._document = document
        self._reader = CatalogReader(upstream, route, request)

    async def intent(self) -> dict[str, Any]:
        separator = await self._upstream.separator(self._request)
        intent = intent_of(self._operation, self._route.target(separator), self._document)
        if self.looks_first:
            intent = replace(intent, before=await self._look_before(intent.targets[0]))
        return intent.to_json()

    async def execute(self, intent: dict[str, Any]) -> Response:
        del intent  # the request itself says it all
        return await self._upstream.fetch(self._request, self._body)

    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        meant = Intent.from_json(intent)
        state = await self._reader.load_all(meant)
        match check(meant, state):
            case Verdict.APPLIED:
                return Applied(_answer(meant, state))
            case Verdict.NOT_APPLIED:
                return NotApplied()
            case Verdict.INCOMPATIBLE:
                return Incompatible(
                    "The outcome of the first request with this key is unknown, and "
                    f"{meant.targets[0]} is now something else than it asked for. Look at it, and "
                    "use a new key."
                )

    async def replay(self, record: Record) -> Response:
        """The kept answer, if the caller may read what is in it."""
        meant, kept = Intent.from_json(record.intent), record.response
        assert kept is not None
        if kept.status in (200, 201) and (kept.body or not record.complete):
            state = await self._read_again(meant)
            if not record.complete:
                return _answer(meant, state)
            if meant.operation in _WITH_CREDENTIALS:
                return _with_fresh_secrets(kept, state[meant.targets[0]] or {})
            return kept
        # Otherwise there is nothing in the answer to be kept from anybody.
        with contextlib.suppress(UpstreamUnreachable):
            await self._reader.load(Target(Kind.NAMESPACE, meant.targets[0].namespace))
        return kept

    def without_secrets(self, response: Response) -> Response:
        headers = tuple(pair for pair in response.headers if pair[0] in _KEPT_HEADERS)
        body = response.body
        if response.rest is None and any(f'"{name}"'.encode() in body for name in _SECRETS):
            document = json.loads(body)
            body = json.dumps({k: v for k, v in document.items() if k not in _SECRETS}).encode()
        return Response(response.status, headers, body, response.rest)

    def subtype_of(self, response: Response) -> str | None:
        """A catalog with keys of its own may say that it is still at it."""
        if response.status != 409 or b"subtype" not in response.body:
            return None
        try:
            return str(json.loads(response.body)["error"]["subtype"])
        except (ValueError, KeyError, TypeError):
            return None

    async def _look_before(self, target: Target) -> dict[str, Any]:
        """What is there now. Whoever may not look may still be allowed to change it."""
        try:
            few = "snapshots=refs" if target.kind is Kind.TABLE else ""
            found = await self._reader.load(target, few)
        except (PassedOn, UpstreamUnreachable):
            return {}
        if found is None:
            return {"exists": False}
        metadata = found.get("metadata")
        uuid = metadata.get(_UUIDS.get(target.kind, "")) if isinstance(metadata, dict) else None
        return {"exists": True, **({"uuid": uuid} if uuid else {})}

    async def _read_again(self, intent: Intent) -> State:
        state = await self._reader.load_all(intent)
        if None in state.values():
            raise ReplayFailed(
                f"The request was carried out, but {intent.targets[0]} is gone since, and with it "
                "the answer. It was not repeated."
            )
        return state


def _says_it_is_not_there(document: Any) -> bool:
    """Not: that its metadata file is missing."""
    error = document.get("error") if isinstance(document, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind is None or "NoSuch" in str(kind)


def _answer(intent: Intent, state: State) -> Response:
    answer = answer_of(intent, state)
    if answer.body is None:
        return Response(answer.status)
    return Response(answer.status, (_JSON,), json.dumps(answer.body).encode())


def _with_fresh_secrets(kept: Response, loaded: Mapping[str, Any]) -> Response:
    document = json.loads(kept.body) | {k: loaded[k] for k in _SECRETS if k in loaded}
    return Response(kept.status, kept.headers, json.dumps(document).encode())
