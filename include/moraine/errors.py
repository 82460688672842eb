"""The errors that several packages raise. Each package has its own errors beside its code.

An error has a stable code and says what to do. Its class says whether a retry may help (transient
or final); the class's header has the code and the HTTP status.
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID


class MoraineError(Exception):
    """Something unexpected happened inside Moraine."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500
    retry_after: float | None = None
    """Seconds after which a retry may succeed."""
    subtype: ClassVar[str] = ""
    """As the Idempotency-Key specification names it."""

    def __init_subclass__(
        cls, code: str = "", http_status: int = 0, retry_after: float | None = None
    ) -> None:
        """A kind of error inherits what its header does not give."""
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.http_status = http_status or cls.http_status
        cls.retry_after = retry_after or cls.retry_after

    def __init__(
        self,
        message: str | None = None,
        *,
        details: str | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        """`report` is the message for programs: it becomes part of the task's result."""
        super().__init__(message or (type(self).__doc__ or type(self).__name__).strip())
        self.details = details
        self.report = report


# --- The caller's mistakes ------------------------------------------------------------------


class BadRequest(MoraineError, code="BAD_REQUEST", http_status=400):
    """The request is malformed."""


class ValidationFailed(BadRequest, code="VALIDATION_FAILED"):
    """A field of the request is missing or wrong."""


class UnknownOperation(BadRequest, code="UNKNOWN_OPERATION_TYPE"):
    """No operation of that type is known here."""


class PayloadTooLarge(MoraineError, code="PAYLOAD_TOO_LARGE", http_status=413):
    """The request body is larger than api.max-body-bytes."""


class BodyTooSlow(MoraineError, code="BODY_TOO_SLOW", http_status=408):
    """The body of the request arrives too slowly."""


class TooManyRequests(MoraineError, code="TOO_MANY_REQUESTS", http_status=429, retry_after=1):
    """Too many requests of this client are in progress; try again later."""


class UnsupportedMediaType(MoraineError, code="UNSUPPORTED_MEDIA_TYPE", http_status=415):
    """Send the body as application/json."""


class Unauthorized(MoraineError, code="UNAUTHORIZED", http_status=401):
    """Send a valid bearer token in the Authorization header."""


class Forbidden(MoraineError, code="FORBIDDEN", http_status=403):
    """The caller may not do that."""


class RealmMismatch(Forbidden, code="REALM_MISMATCH"):
    """This deployment serves another realm."""


class TaskNotFound(MoraineError, code="TASK_NOT_FOUND", http_status=404):
    """No task has that id."""


class Conflict(MoraineError, code="CONFLICT", http_status=409):
    """The request does not fit the current state."""


class TaskConflict(Conflict, code="TASK_CONFLICT"):
    """The task is in a state that does not allow this."""


class AlreadyInProgress(Conflict, code="TASK_ALREADY_IN_PROGRESS"):
    """Another task is already at work on this table."""

    def __init__(self, message: str, *, task_id: UUID | None) -> None:
        super().__init__(message)
        self.task_id = task_id


class SyncWaitExceeded(MoraineError, code="SYNC_WAIT_EXCEEDED", http_status=500):
    """The task takes longer than a synchronous request may wait; it continues."""


# --- The task framework ---------------------------------------------------------------------


class LeaseLost(MoraineError, code="LEASE_LOST"):
    """Another worker took over this attempt; this one must stop."""


class IllegalTransition(MoraineError, code="ILLEGAL_TRANSITION"):
    """The task's state machine has no such transition."""


class LedgerUnavailable(MoraineError, code="LEDGER_UNAVAILABLE", http_status=503, retry_after=5):
    """The ledger's database does not answer."""


# --- Failures of work -----------------------------------------------------------------------


class TransientError(MoraineError, code="TRANSIENT_FAILURE"):
    """The work failed for a reason that may pass; the retry policy decides when to retry."""


class FinalError(MoraineError, code="FINAL_FAILURE"):
    """The work failed for a reason that a retry cannot fix."""


class Cancelled(FinalError, code="CANCELLED", http_status=409):
    """Cancelled on request."""


class WorkerLost(TransientError, code="WORKER_LOST"):
    """The worker of this attempt disappeared."""


class WorkersLost(FinalError, code="WORKER_LOST"):
    """The worker of every attempt disappeared."""


class SparkUnavailable(TransientError, code="SPARK_UNAVAILABLE", http_status=502):
    """Spark did not answer or went away in the middle of a job."""


class SparkJobFailed(SparkUnavailable):
    """A Spark job failed, though Spark is there."""


class CatalogUnavailable(TransientError, code="CREDENTIAL_VENDING_FAILED", http_status=502):
    """The catalog did not answer, so it vended no credentials for the table."""


class CatalogRefused(FinalError, code="CREDENTIAL_VENDING_FAILED", http_status=502):
    """The catalog refused Moraine's principal, so it vended no credentials for the table."""


class CatalogNotConfigured(FinalError, code="CATALOG_NOT_CONFIGURED", http_status=409):
    """This deployment knows no catalog of that name; add it to the settings."""


class TableNotFound(FinalError, code="TABLE_NOT_FOUND", http_status=409):
    """The catalog has no such table."""


class MetadataDamaged(FinalError, code="METADATA_DAMAGED", http_status=409):
    """A manifest or manifest list is there but cannot be read; nothing was deleted."""


class StorageUnavailable(TransientError, code="STORAGE_UNAVAILABLE", http_status=502):
    """The storage did not answer."""


class StorageRefused(FinalError, code="STORAGE_REFUSED", http_status=502):
    """The storage refused an operation."""


def http_status_of(code: str | None) -> int:
    """The HTTP status for an error code read back from the ledger."""
    known = {error.code: error.http_status for error in _family(MoraineError)}
    return known.get(code or "", MoraineError.http_status)


def error_named(name: str) -> type[MoraineError] | None:
    """The error class of that name, in whichever module it is defined. Names are unique."""
    return next((error for error in _family(MoraineError) if error.__name__ == name), None)


def _family(error: type[MoraineError]) -> list[type[MoraineError]]:
    return [error, *(member for sub in error.__subclasses__() for member in _family(sub))]
