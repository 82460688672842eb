"""A keyed request and what became of it. Pure: no I/O, the clock is the database's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

REPLAYED = "Idempotency-Replayed"
IN_PROGRESS = "request_in_progress"

_SUCCESS = frozenset(range(200, 300))
# The caller was turned away at the door: nothing was tried, and the key may be used again.
_REFUSED = frozenset({401, 403, 419, 421, 425, 429})
# Of a request that timed out nobody knows how far it came.
_UNKNOWN = frozenset({408})


class Scope(NamedTuple):
    """Where a key is unique."""

    realm_id: str
    method: str
    resource_path: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    rest: AsyncIterator[bytes] | None = field(default=None, repr=False)
    """What comes after `body`, where that is too much to be kept at once."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def with_header(self, name: str, value: str) -> Response:
        others = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return Response(self.status, (*others, (name, value)), self.body, self.rest)


@dataclass(frozen=True, slots=True)
class Record:
    """A key that was seen before."""

    payload_hash: str
    intent: dict[str, Any]
    attempts: int
    abandoned: bool
    """Nobody is at work on it any more, and nobody has said how it ended."""
    http_status: int | None
    response_headers: Mapping[str, str] | None
    response_body: bytes | None
    """None if it was too large to be kept."""

    @property
    def response(self) -> Response | None:
        """What the first request was answered; None while that is not known."""
        if self.http_status is None:
            return None
        headers = tuple((self.response_headers or {}).items())
        return Response(self.http_status, headers, self.response_body or b"")

    @property
    def complete(self) -> bool:
        return self.response_body is not None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to execute a keyed request. Whoever takes over raises the number of attempts, so
    the one before cannot write down an outcome any more."""

    scope: Scope
    owner: str
    attempts: int

    @property
    def first(self) -> bool:
        return self.attempts == 1


def is_final(status: int, subtype: str | None = None) -> bool:
    """Whether an answer is the outcome of the request, to be kept and given again."""
    if status in _SUCCESS:
        return True
    transient = is_refusal(status) or status in _UNKNOWN or subtype == IN_PROGRESS
    return 400 <= status < 500 and not transient


def is_refusal(status: int) -> bool:
    """Whether an answer says that the request was not even tried."""
    return status in _REFUSED
