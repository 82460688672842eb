"""Keyed requests and their outcomes. Pure: no I/O, the clock is the database's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

REPLAYED = "Idempotency-Replayed"
IN_PROGRESS = "request_in_progress"

_SUCCESS = frozenset(range(200, 300))
# The caller was refused: nothing was tried, and the key may be used again.
_REFUSED = frozenset({401, 403, 419, 421, 425, 429})
# A request that timed out may or may not have had its effect.
_UNKNOWN = frozenset({408})


class Scope(NamedTuple):
    """A key is unique within these."""

    realm_id: str
    principal: str
    method: str
    resource_path: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    rest: AsyncGenerator[bytes, None] | None = field(default=None, repr=False)
    """What follows `body`, if the whole is too large to be held at once."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def with_header(self, name: str, value: str) -> Response:
        others = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return Response(self.status, (*others, (name, value)), self.body, self.rest)


@dataclass(frozen=True, slots=True)
class Record:
    """What the ledger knows of a key."""

    payload_hash: str
    intent: dict[str, Any]
    attempts: int
    abandoned: bool
    """The lease of its owner expired, and no outcome was written."""
    http_status: int | None
    response_headers: Mapping[str, str] | None
    response_body: bytes | None
    """None if it was too large to be stored."""

    @property
    def response(self) -> Response | None:
        """The response to the first request; None while that is unknown."""
        if self.http_status is None:
            return None
        headers = tuple((self.response_headers or {}).items())
        return Response(self.http_status, headers, self.response_body or b"")

    @property
    def complete(self) -> bool:
        return self.response_body is not None


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The right to execute a keyed request. A process that takes over raises the number of
    attempts, so its predecessor can no longer write an outcome."""

    scope: Scope
    owner: str
    attempts: int

    @property
    def first(self) -> bool:
        return self.attempts == 1


def is_final(status: int) -> bool:
    """Whether a response is the outcome of the request, to be stored and replayed."""
    if status in _SUCCESS:
        return True
    return 400 <= status < 500 and not is_refusal(status) and status not in _UNKNOWN


def is_refusal(status: int) -> bool:
    """Whether a response says that the request was not tried."""
    return status in _REFUSED
