"""What a store answered, and the outcome for a file that was to be deleted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal, NamedTuple, TypeAlias

from obstore.exceptions import InvalidPathError, PermissionDeniedError, UnauthenticatedError

DELETED: Final = "deleted"
"""The file is gone. A bulk request to S3 does not say whether it existed."""
MISSING: Final = "missing"
"""There was no such file. This is not a failure."""
UNSENT: Final = "unsent"
"""No request was sent for the file, because the permit was withdrawn."""


class Failure(NamedTuple):
    """The file is still there, or its state is unknown."""

    reason: str
    refused: bool
    """The store refused: a retry does not help."""


Outcome: TypeAlias = Literal["deleted", "missing", "unsent"] | Failure


class Kind(Enum):
    MISSING = auto()
    REFUSED = auto()
    UNAUTHENTICATED = auto()
    """The credentials were refused; newer ones may be accepted."""
    THROTTLED = auto()
    BROKEN = auto()
    """No answer, or one that a retry may change. The request may have been carried out."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A request that failed."""

    kind: Kind
    reason: str
    """Short, and made of codes only: an answer's text may quote what was signed."""
    of_key: bool = False
    """The problem may be one key's only: the other keys of the request may succeed alone."""


_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_CODES = {
    Kind.MISSING: {"NoSuchKey", "NotFound", "BlobNotFound"},
    Kind.REFUSED: {
        "AccessDenied",
        "AllAccessDisabled",
        "AccountProblem",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "InvalidObjectState",
        "InvalidRequest",
        "KeyTooLongError",
        "MalformedXML",
        "MethodNotAllowed",
        "NoSuchBucket",
        "ContainerNotFound",
    },
    Kind.UNAUTHENTICATED: _EXPIRED
    | {"InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed"},
    Kind.THROTTLED: {
        "SlowDown",
        "ServiceUnavailable",
        "ServerBusy",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
    },
    Kind.BROKEN: {"InternalError", "RequestTimeout", "OperationAborted", "RequestTimeTooSkewed"},
}
_KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}
_KEY_CODE = re.compile(r"^Generic S3 error: DeleteObjects request failed for key .*\(code: (\w+)\)")
_KEY_STATUS = re.compile(
    r"^(?:Generic MicrosoftAzure error|Object at location .* not found): "
    r"Bulk delete request failed for key .*\(code: (\d{3})\)$"
)
_KEY_CODES = re.compile(r"<Error>.*?<Code>(\w+)</Code>", re.S)
_STATUS = re.compile(r"^non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (\w+)")
_TRANSPORT_REASONS = {
    "Timeout": "no answer in time",
    "Connect": "no connection could be made",
    "Interrupted": "the connection broke",
}


def classify(error: Exception) -> Problem:
    """Translate an error of the store's client."""
    # The client's text ends in a dump of its own structures.
    text, _, dump = str(error).partition("\n\nDebug source:")
    # The answer comes last, after the keys, which may contain any text.
    _, answered, answer = text.rpartition("Server returned ")
    line = text.replace("\n", " ").strip()
    if found := _KEY_CODE.match(line):
        return _of_key(found.group(1))
    if found := _KEY_STATUS.match(line):
        return replace(_of_answer(int(found.group(1)), None), of_key=True)
    if answered and answer.startswith("error response") and "<DeleteResult" in answer:
        # The client gives the whole answer if one of its codes is transient: that code decides.
        codes = sorted(_KEY_CODES.findall(answer), key=_is_permanent)
        return _of_key(codes[0] if codes else "unknown")
    status = _STATUS.match(answer) if answered else None
    code = found.group(1) if answered and (found := _CODE.search(answer)) else None
    if status or code:
        return _of_answer(int(status.group(1)) if status else 200, code)
    if isinstance(error, FileNotFoundError):
        return Problem(Kind.MISSING, "not found", of_key=True)
    if isinstance(error, PermissionDeniedError):
        return Problem(Kind.REFUSED, "refused")
    if isinstance(error, UnauthenticatedError):
        return Problem(Kind.UNAUTHENTICATED, "the credentials were refused")
    if isinstance(error, (InvalidPathError, ValueError, TypeError)):
        return Problem(Kind.REFUSED, "its key cannot be addressed", of_key=True)
    if "Received redirect" in text:
        return Problem(Kind.REFUSED, "the store is in another region")
    transport = _TRANSPORT.search(dump)
    reason = _TRANSPORT_REASONS.get(transport.group(1)) if transport else None
    return Problem(Kind.BROKEN, reason or "the request failed")


def _of_key(code: str) -> Problem:
    return Problem(_KIND_OF_CODE.get(code, Kind.BROKEN), code, of_key=True)


def _is_permanent(code: str) -> bool:
    return _KIND_OF_CODE.get(code) not in (Kind.THROTTLED, Kind.BROKEN)


def _of_answer(status: int, code: str | None) -> Problem:
    reason = f"HTTP {status}" if code is None else f"HTTP {status} {code}"
    known = _KIND_OF_CODE.get(code or "")
    by_status = {401: Kind.UNAUTHENTICATED, 404: Kind.MISSING, 408: Kind.BROKEN}
    default = Kind.REFUSED if 400 <= status < 500 else Kind.BROKEN
    kind = known or by_status.get(status, default)
    if status in (429, 503):
        kind = Kind.THROTTLED
    denied = kind is Kind.REFUSED and status == 403
    return Problem(kind, reason, of_key=denied or kind is Kind.MISSING)


def outcome_of(problem: Problem) -> Outcome:
    if problem.kind is Kind.MISSING:
        return MISSING
    return Failure(problem.reason, refused=is_final(problem))


def is_final(problem: Problem) -> bool:
    """Whether the store refused for good. An expired token may be replaced by a newer one."""
    expired = any(code in problem.reason for code in _EXPIRED)
    return problem.kind in (Kind.REFUSED, Kind.UNAUTHENTICATED) and not expired
