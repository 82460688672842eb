"""What the ledger has of a request that was refused, as the error that its sender gets."""

from __future__ import annotations

from moraine.ingest.errors import IngestError
from moraine.ingest.model import Request


class Refused(IngestError):
    """The request was refused, and nothing of it was written."""

    def __init__(self, code: str, message: str, http_status: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.http_status = http_status  # type: ignore[misc]


def rejection_of(request: Request) -> Refused:
    error = request.error or {}
    code = str(error.get("code") or "bad_request_body")
    return Refused(code, str(error.get("message") or "The request was refused."), _status_of(code))


def _status_of(code: str) -> int:
    known = {kind.code: kind.http_status for kind in IngestError.__subclasses__()}
    return known.get(code, 400)
