"""What goes wrong at a door, with the codes of the ingest contract."""

from __future__ import annotations

from moraine.errors import MoraineError


class IngestError(MoraineError):
    """The request cannot be taken."""


class InvalidHeader(IngestError):
    """A header of the request is wrong."""

    code = "invalid_header"
    http_status = 400


class MissingTable(IngestError):
    """Name the table in the header X-Table, and its database in X-Database."""

    code = "missing_table_header"
    http_status = 400


class BadBody(IngestError):
    """The body cannot be read."""

    code = "bad_request_body"
    http_status = 400


class InvalidKey(IngestError):
    """A key has 1 to 255 visible ASCII characters."""

    code = "invalid_idempotency_key"
    http_status = 400


class InvalidName(IngestError):
    """A database or a table cannot be called that."""

    code = "invalid_name"
    http_status = 400


class NoSuchTable(IngestError):
    """There is no such table; make it first, or let it be made (X-Auto-Create, auto-create)."""

    code = "table_not_found"
    http_status = 404


class NoSuchKey(IngestError):
    """No request with that key is known here, or it is longer ago than keys live."""

    code = "key_not_found"
    http_status = 404


class TableExists(IngestError):
    """There is such a table already."""

    code = "table_exists"
    http_status = 409


class InProgress(IngestError):
    """The request with this key is still being worked on; ask again with the same key."""

    code = "request_in_progress"
    http_status = 409
    retry_after = 1


class BodyTooLarge(IngestError):
    """The body is larger than ingest.rest.max-body-bytes."""

    code = "payload_too_large"
    http_status = 413


class WrongMediaType(IngestError):
    """Send application/x-ndjson, plain or with Content-Encoding gzip or zstd."""

    code = "unsupported_media_type"
    http_status = 415


class KeyReused(IngestError):
    """This key was used for other bytes or another table; take a new key."""

    code = "idempotency_key_reused"
    http_status = 422


class RateLimited(IngestError):
    """Too many requests for this database."""

    code = "rate_limited"
    http_status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(IngestError):
    """More is waiting to be written than may wait; try again with the same key."""

    code = "overloaded"
    http_status = 503
    retry_after = 5


class WriterAway(IngestError):
    """The bytes are kept, but nobody writes them yet; ask again with the same key."""

    code = "writer_unavailable"
    http_status = 503
    retry_after = 5
