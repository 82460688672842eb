"""A mutation of a catalog: forwarded unchanged, and looked up if its outcome is unknown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from moraine.errors import MoraineError
from moraine.gateway.checks import answer_of, check
from moraine.gateway.errors import UpstreamUnreachable, error_response
from moraine.gateway.intake import Content, in_thread_if_large
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, State, Verdict
from moraine.gateway.upstream import (
    AWAY,
    REFUSALS,
    CatalogRequest,
    PassedOn,
    Upstream,
    parse_json,
)
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.metadata import uuid_of
from moraine.iceberg.model import VENDED_FIELDS, Identifier, ObjectKind
from moraine.iceberg.paths import Route, whole_query
from moraine.idempotency.model import IN_PROGRESS, Record, Response, Scope
from moraine.idempotency.service import (
    Applied,
    Finding,
    Incompatible,
    Mutation,
    NotApplied,
    RepetitionRefused,
    ReplayFailed,
    RequestInProgress,
)

# Headers of a kept answer that are also true of a replay.
_KEPT_HEADERS = frozenset({"content-type", "etag", "last-modified", "content-language"})
_JSON = ("content-type", "application/json")
# Their outcome can be checked only against the state before the request.
_LOOK_FIRST = frozenset(
    {
        Endpoint.CREATE_NAMESPACE,
        Endpoint.DROP_NAMESPACE,
        Endpoint.CREATE_TABLE,
        Endpoint.DROP_TABLE,
        Endpoint.RENAME_TABLE,
        Endpoint.CREATE_VIEW,
        Endpoint.DROP_VIEW,
        Endpoint.RENAME_VIEW,
    }
)
_WITH_CREDENTIALS = frozenset(
    {
        Endpoint.CREATE_TABLE,
        Endpoint.REGISTER_TABLE,
        Endpoint.CREATE_VIEW,
        Endpoint.REGISTER_VIEW,
        Endpoint.REPLACE_VIEW,
    }
)
# Their clients delete the files of the commit after a refusal.
_COMMITS = frozenset({Endpoint.COMMIT_TABLE, Endpoint.COMMIT_TRANSACTION, Endpoint.REPLACE_VIEW})
_UUIDS = {ObjectKind.TABLE: "table-uuid", ObjectKind.VIEW: "view-uuid"}


class Unreadable(UpstreamUnreachable):
    """The catalog answered, but not with the object that was asked for."""

    def __init__(self, status: int, target: Identifier) -> None:
        super().__init__(
            f"The catalog answered {status} when it was asked for {target}, so it is unknown "
            "whether the request was carried out."
        )
        self.answered = status


class CatalogReader:
    """Reads a catalog with one caller's credentials."""

    def __init__(self, upstream: Upstream, route: Route, request: CatalogRequest) -> None:
        self._upstream = upstream
        self._route = route
        self._request = request

    async def load(self, target: Identifier, query: str | None = None) -> Mapping[str, Any] | None:
        """A namespace, table or view as the catalog loads it; None if there is none."""
        path = self._route.paths.path_of(target)
        query = whole_query(target.kind) if query is None else query
        response = await self._upstream.fetch_whole(self._request.reading(path, query))
        if response.status in REFUSALS:
            raise PassedOn(response)
        document = await parse_json(response.body)
        if response.status == 404 and _says_not_found(document):
            return None
        if response.status != 200 or not isinstance(document, dict):
            raise Unreadable(response.status, target)
        return document

    async def load_all(self, intent: Intent) -> State:
        return {target: await self.load(target) for target in intent.targets}


class CatalogMutation(Mutation):
    """`refusal` is why it must not be executed, though an earlier request may have been."""

    def __init__(
        self,
        scope: Scope,
        route: Route,
        upstream: Upstream,
        request: CatalogRequest,
        content: Content,
        refusal: MoraineError | None = None,
    ) -> None:
        assert route.endpoint is not None
        self.scope = scope
        self.payload_hash = content.payload_hash
        self.looks_first = route.endpoint in _LOOK_FIRST
        self._endpoint = route.endpoint
        self._route = route
        self._upstream = upstream
        self._request = request
        self._content = content
        self._refusal = refusal
        self._reader = CatalogReader(upstream, route, request)

    async def intent(self) -> dict[str, Any]:
        size, document = len(self._content.body), self._content.document
        asked = self._endpoint, self._route.target, document
        intent = await in_thread_if_large(size, intent_of, *asked)
        if self.looks_first:
            intent = replace(intent, before=await self._look_before(intent.targets[0]))
        return await in_thread_if_large(size, intent.to_json)

    async def execute(self, intent: dict[str, Any]) -> Response:
        del intent  # the request itself has everything
        if self._refusal is not None:
            return error_response(self._refusal)
        response = await self._upstream.fetch(self._request, self._content.body)
        if _is_in_progress(response):
            raise RequestInProgress()
        return response

    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        meant = Intent.from_json(intent)
        try:
            state = await self._reader.load_all(meant)
        except PassedOn as refusal:
            raise RepetitionRefused(refusal.response.status) from None
        match check(meant, state):
            case Verdict.APPLIED:
                return Applied(answer_from(meant, state))
            case Verdict.NOT_APPLIED:
                return NotApplied()
            case Verdict.INCOMPATIBLE:
                return Incompatible(
                    "The outcome of the first request with this key is unknown, and "
                    f"{meant.targets[0]} is not what it asked for. Look at it, and use a new key."
                )

    async def replay(self, record: Record) -> Response:
        """The kept answer, if the caller is allowed to read its content."""
        meant, kept = Intent.from_json(record.intent), record.response
        assert kept is not None
        try:
            return await self._replay_to_caller(record, meant, kept)
        except PassedOn as refusal:
            if meant.endpoint not in _COMMITS:
                raise
            raise RepetitionRefused(refusal.response.status) from None

    async def _replay_to_caller(self, record: Record, meant: Intent, kept: Response) -> Response:
        if kept.status in (200, 201) and (kept.body or not record.complete):
            state = await self._read_again(meant)
            if not record.complete:
                return answer_from(meant, state)
            if _is_about_another(kept, state[meant.targets[0]] or {}):
                raise _gone(meant)
            if meant.endpoint in _WITH_CREDENTIALS:
                return _with_fresh_secrets(kept, state[meant.targets[0]] or {})
            return kept
        # The answer has nothing to protect; only a refusal by the catalog matters.
        await self.check_caller(record)
        return kept

    async def check_caller(self, record: Record) -> None:
        """Raise PassedOn for a caller whom the catalog refuses to show the namespace."""
        target = Intent.from_json(record.intent).targets[0]
        with contextlib.suppress(UpstreamUnreachable):
            await self._reader.load(Identifier(ObjectKind.NAMESPACE, target.namespace))

    def without_secrets(self, response: Response) -> Response:
        headers = tuple(pair for pair in response.headers if pair[0] in _KEPT_HEADERS)
        body = response.body
        if response.rest is None and any(f'"{name}"'.encode() in body for name in VENDED_FIELDS):
            with contextlib.suppress(ValueError, AttributeError):  # not a JSON object
                members = json.loads(body).items()
                body = json.dumps({k: v for k, v in members if k not in VENDED_FIELDS}).encode()
        return Response(response.status, headers, body, response.rest)

    async def _look_before(self, target: Identifier) -> dict[str, Any]:
        """What is there now. An object that cannot be loaded can still be dropped. Raises PassedOn
        for a caller who may not load it: nothing is recorded for that caller."""
        try:
            few = "snapshots=refs" if target.kind is ObjectKind.TABLE else ""
            found = await self._reader.load(target, few)
        except Unreadable as error:
            if error.answered in AWAY:
                # Nothing has been tried yet: a retry is better than a guess later.
                raise
            return {}
        if found is None:
            return {"exists": False}
        metadata = found.get("metadata")
        uuid = metadata.get(_UUIDS.get(target.kind, "")) if isinstance(metadata, dict) else None
        return {"exists": True, **({"uuid": uuid} if uuid else {})}

    async def _read_again(self, intent: Intent) -> State:
        state = await self._reader.load_all(intent)
        if None in state.values():
            raise _gone(intent)
        return state


def _gone(intent: Intent) -> ReplayFailed:
    return ReplayFailed(
        f"The request was carried out, but {intent.targets[0]} is gone since, so its answer cannot "
        "be made again. It was not repeated."
    )


def _is_about_another(kept: Response, loaded: Mapping[str, Any]) -> bool:
    """Whether a kept answer is about another table or view than the one of that name now."""
    uuid = uuid_of(loaded.get("metadata") or {})
    return uuid is not None and b'-uuid"' in kept.body and uuid.encode() not in kept.body.lower()


def _says_not_found(document: Any) -> bool:
    """Whether the catalog itself says so: not a proxy before it, nor about a missing file."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return False
    return error.get("type") is None or "NoSuch" in str(error["type"])


def _is_in_progress(response: Response) -> bool:
    """A catalog with keys of its own may still be executing the request."""
    if response.status != 409 or b"subtype" not in response.body:
        return False
    try:
        return bool(json.loads(response.body)["error"]["subtype"] == IN_PROGRESS)
    except (ValueError, KeyError, TypeError):
        return False


def answer_from(intent: Intent, state: State, *, without: Container[str] = ()) -> Response:
    """The answer to an applied intent, less some fields."""
    answer = answer_of(intent, state)
    if answer.body is None:
        return Response(answer.status)
    body = {name: value for name, value in answer.body.items() if name not in without}
    return Response(answer.status, (_JSON,), json.dumps(body).encode())


def _with_fresh_secrets(kept: Response, loaded: Mapping[str, Any]) -> Response:
    document = json.loads(kept.body) | {k: loaded[k] for k in VENDED_FIELDS if k in loaded}
    return Response(kept.status, kept.headers, json.dumps(document).encode())
