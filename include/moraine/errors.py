"""Every error Moraine raises on purpose.

An error has a stable code, says what to do, and knows two things about itself: whether trying
again may help (transient or final), and which HTTP status tells a caller about it.
"""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID


class MoraineError(Exception):
    """Something unexpected happened inside Moraine."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str | None = None,
        *,
        details: str | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        """`report` is the same for programs: it becomes part of the task's result."""
        super().__init__(message or (type(self).__doc__ or type(self).__name__).strip())
        self.details = details
        self.report = report


# --- The caller's mistakes ------------------------------------------------------------------


class BadRequest(MoraineError):
    """The request is malformed."""

    code = "BAD_REQUEST"
    http_status = 400


class ValidationFailed(BadRequest):
    """A field of the request is missing or wrong."""

    code = "VALIDATION_FAILED"


class UnknownOperation(BadRequest):
    """No operation of that type is known here."""

    code = "UNKNOWN_OPERATION_TYPE"


class PayloadTooLarge(MoraineError):
    """The request body is larger than api.max-body-bytes."""

    code = "PAYLOAD_TOO_LARGE"
    http_status = 413


class UnsupportedMediaType(MoraineError):
    """Send the body as application/json."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    http_status = 415


class Unauthorized(MoraineError):
    """Send a valid bearer token in the Authorization header."""

    code = "UNAUTHORIZED"
    http_status = 401


class Forbidden(MoraineError):
    """The caller may not do that."""

    code = "FORBIDDEN"
    http_status = 403


class RealmMismatch(Forbidden):
    """This deployment serves another realm."""

    code = "REALM_MISMATCH"


class TaskNotFound(MoraineError):
    """No task has that id."""

    code = "TASK_NOT_FOUND"
    http_status = 404


class Conflict(MoraineError):
    """The request does not fit the current state."""

    code = "CONFLICT"
    http_status = 409


class TaskConflict(Conflict):
    """The task is in a state that does not allow this."""

    code = "TASK_CONFLICT"


class AlreadyInProgress(Conflict):
    """Another task is already at work on this table."""

    code = "TASK_ALREADY_IN_PROGRESS"

    def __init__(self, message: str, *, task_id: UUID | None) -> None:
        super().__init__(message)
        self.task_id = task_id


class SyncWaitExceeded(MoraineError):
    """The task takes longer than a synchronous request may wait; it goes on."""

    code = "SYNC_WAIT_EXCEEDED"
    http_status = 500


# --- The task framework ---------------------------------------------------------------------


class LeaseLost(MoraineError):
    """Another worker took over this attempt; this one must stop."""

    code = "LEASE_LOST"


class IllegalTransition(MoraineError):
    """The task's state machine has no such transition."""

    code = "ILLEGAL_TRANSITION"


class LedgerUnavailable(MoraineError):
    """The ledger's database does not answer."""

    code = "LEDGER_UNAVAILABLE"
    http_status = 503


# --- Failures of work -----------------------------------------------------------------------


class TransientError(MoraineError):
    """The work failed in a way that may pass; the retry policy decides when to try again."""

    code = "TRANSIENT_FAILURE"


class FinalError(MoraineError):
    """The work failed in a way that trying again cannot mend."""

    code = "FINAL_FAILURE"


class Cancelled(FinalError):
    """Cancelled on request."""

    code = "CANCELLED"
    http_status = 409


class WorkerLost(TransientError):
    """The worker of this attempt ended without a word."""

    code = "WORKER_LOST"


class WorkersLost(FinalError):
    """Every attempt's worker ended without a word."""

    code = "WORKER_LOST"


class SparkUnavailable(TransientError):
    """Spark did not answer or went away in the middle of a job."""

    code = "SPARK_UNAVAILABLE"
    http_status = 502


class SparkJobFailed(SparkUnavailable):
    """A Spark job failed, though Spark is there."""


class CatalogUnavailable(TransientError):
    """The catalog did not answer, so no credentials could be had for the table."""

    code = "CREDENTIAL_VENDING_FAILED"
    http_status = 502


class CatalogRefused(FinalError):
    """The catalog refused Moraine's principal, so no credentials could be had for the table."""

    code = "CREDENTIAL_VENDING_FAILED"
    http_status = 502


class CatalogNotConfigured(FinalError):
    """This deployment knows no catalog of that name; add it to the settings."""

    code = "CATALOG_NOT_CONFIGURED"
    http_status = 409


class TableNotFound(FinalError):
    """The catalog has no such table."""

    code = "TABLE_NOT_FOUND"
    http_status = 409


class TableChanged(FinalError):
    """The table is not the one the task was asked to purge; nothing was deleted."""

    code = "TABLE_CHANGED"
    http_status = 409


class PurgeForbidden(FinalError):
    """The table's own settings forbid a purge; nothing was deleted."""

    code = "PURGE_FORBIDDEN"
    http_status = 409


class LocationShared(FinalError):
    """Another table lies in the same place; nothing was deleted."""

    code = "LOCATION_SHARED"
    http_status = 409


class PathOutsideTable(FinalError):
    """The table names files outside its own locations; nothing was deleted."""

    code = "PATH_OUTSIDE_TABLE"
    http_status = 409


class MetadataDamaged(FinalError):
    """A manifest or manifest list is there but cannot be read; nothing was deleted."""

    code = "METADATA_DAMAGED"
    http_status = 409


class StorageUnavailable(TransientError):
    """The storage did not answer."""

    code = "STORAGE_UNAVAILABLE"
    http_status = 502


class StorageRefused(FinalError):
    """The storage refused an operation."""

    code = "STORAGE_REFUSED"
    http_status = 502


class FilesRemain(TransientError):
    """Some files are still there after the delete."""

    code = "FILES_REMAIN"
    http_status = 502


def http_status_of(code: str | None) -> int:
    """The HTTP status for an error code read back from the ledger."""
    known = {error.code: error.http_status for error in _family(MoraineError)}
    return known.get(code or "", MoraineError.http_status)


def _family(error: type[MoraineError]) -> list[type[MoraineError]]:
    return [error, *(member for sub in error.__subclasses__() for member in _family(sub))]
