"""Errors of ingest, with the codes of its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moraine.errors import (
    CatalogRefused,
    CatalogUnavailable,
    MoraineError,
    SparkJobFailed,
    SparkUnavailable,
)


class IngestError(MoraineError):
    """The request cannot be taken."""


class InvalidHeader(IngestError, code="invalid_header", http_status=400):
    """A header of the request is wrong."""


class MissingTable(IngestError, code="missing_table_header", http_status=400):
    """Name the table in the header X-Table, and its database in X-Database."""


class BadBody(IngestError, code="bad_request_body", http_status=400):
    """The body cannot be read."""


class InvalidIngestKey(IngestError, code="invalid_idempotency_key", http_status=400):
    """A key has 1 to 255 visible ASCII characters."""


class InvalidName(IngestError, code="invalid_name", http_status=400):
    """A database or a table cannot be called that."""


class TableNotAllowed(IngestError, code="table_not_allowed", http_status=403):
    """The policy or the settings do not let this door write to that table."""


class UnknownTable(IngestError, code="table_not_found", http_status=404):
    """There is no such table; create it, or allow its creation (X-Auto-Create, auto-create)."""


class NoSuchKey(IngestError, code="key_not_found", http_status=404):
    """No request with that key is known, or the key has expired."""


class TableExists(IngestError, code="table_exists", http_status=409):
    """The table exists already."""


class UnsupportedTable(IngestError, code="table_unsupported", http_status=409):
    """Ingest cannot write to this table as it is."""


class InProgress(IngestError, code="request_in_progress", http_status=409, retry_after=1):
    """The request with this key is still in progress; ask again with the same key."""


class BodyTooLarge(IngestError, code="payload_too_large", http_status=413):
    """The body is larger than ingest.rest.max-body-bytes."""


class WrongMediaType(IngestError, code="unsupported_media_type", http_status=415):
    """Send application/x-ndjson, plain or with Content-Encoding gzip or zstd."""


class KeyReused(IngestError, code="idempotency_key_reused", http_status=422):
    """This key was used for other bytes or another table; use a new key."""


class RateLimited(IngestError, code="rate_limited", http_status=429):
    """Too many requests of this client."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(IngestError, code="overloaded", http_status=503, retry_after=5):
    """Too much is waiting to be written; retry with the same key."""


class WriterAway(IngestError, code="writer_unavailable", http_status=503, retry_after=5):
    """The bytes are kept, but no writer is running; ask again with the same key."""


class WriteFailing(IngestError, code="write_failing", http_status=503, retry_after=5):
    """The bytes are kept, but writing them has failed so far; ask again with the same key."""


class Refused(IngestError):
    """The request was refused, and nothing of it was written."""

    def __init__(self, code: str, message: str, http_status: int) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.http_status = http_status  # type: ignore[misc]


def refusal_of(error: Mapping[str, Any] | None) -> Refused:
    """The error that a sender gets, made from what the ledger has of a rejected request."""
    error = error or {}
    code = str(error.get("code") or BadBody.code)
    statuses = {kind.code: kind.http_status for kind in IngestError.__subclasses__()}
    message = str(error.get("message") or "The request was refused.")
    return Refused(code, message, statuses.get(code, 400))


class CommitContended(CatalogUnavailable):
    """Other writers commit to the table so often that this commit did not succeed."""


# The first that matches.
_WRITE_FAILURES: tuple[tuple[type[BaseException], str, str], ...] = (
    (CommitContended, "table_contended", "Other writers commit to the table all the time."),
    (CatalogUnavailable, "catalog_unavailable", "The catalog does not answer."),
    (CatalogRefused, "catalog_refused", "The catalog refuses Moraine's principal or its request."),
    (SparkJobFailed, "spark_job_failed", "The Spark job that writes it fails."),
    (SparkUnavailable, "spark_unavailable", "Spark does not answer."),
    (OSError, "storage_failed", "The table's storage fails, refuses, or lacks one of its files."),
)


def write_failure_of(error: BaseException) -> dict[str, str]:
    """Why a batch could not be written, for callers who ask about its requests.

    The words are Moraine's own: a message of a catalog, a store or a library may contain addresses,
    keys and rows of other callers.
    """
    if isinstance(error, IngestError):
        return {"code": error.code, "message": str(error)}
    for kind, code, message in _WRITE_FAILURES:
        if isinstance(error, kind):
            return {"code": code, "message": message}
    message = f"The table cannot be written as it is ({type(error).__name__})."
    return {"code": "table_unwritable", "message": message}
