"""Errors as Iceberg's clients see them: its ErrorModel, with a subtype where there is one."""

from __future__ import annotations

import json

from moraine.errors import MoraineError
from moraine.idempotency.model import Response


class CatalogUnknown(MoraineError):
    """The gateway knows no catalog of that name."""

    code = "CATALOG_UNKNOWN"
    http_status = 404


class UpstreamUnreachable(MoraineError):
    """The catalog behind the gateway cannot be reached."""

    code = "CATALOG_UNREACHABLE"
    http_status = 503
    retry_after = 1


class UpstreamSilent(MoraineError):
    """The catalog behind the gateway did not answer in time."""

    code = "CATALOG_TIMEOUT"
    http_status = 504


class BadAnswer(MoraineError):
    """The connection to the catalog behind the gateway broke."""

    code = "CATALOG_CONNECTION_LOST"
    http_status = 502


class TableHidden(MoraineError):
    """The table does not exist."""

    code = "NO_SUCH_TABLE"
    http_status = 404


class NameTaken(MoraineError):
    """A table of that name is being purged; wait until it is gone."""

    code = "TABLE_BEING_PURGED"
    http_status = 409


# What Iceberg's clients know; for the rest they go by the status.
_TYPES = {
    TableHidden: "NoSuchTableException",
    NameTaken: "AlreadyExistsException",
    UpstreamUnreachable: "ServiceUnavailableException",
    UpstreamSilent: "CommitStateUnknownException",
    BadAnswer: "CommitStateUnknownException",
}
_BY_STATUS = {
    400: "BadRequestException",
    404: "NotFoundException",
    409: "CommitFailedException",
    413: "BadRequestException",
    422: "UnprocessableEntityException",
    503: "ServiceUnavailableException",
}


def error_response(error: MoraineError) -> Response:
    status: int = getattr(error, "status", error.http_status)
    kind = _TYPES.get(type(error)) or _BY_STATUS.get(status, "InternalServerError")
    model = {"message": str(error), "type": kind, "code": status}
    if subtype := getattr(error, "subtype", None):
        model["subtype"] = subtype
        if status == 409:
            # To a client that only knows Iceberg's own types it must not look like a lost race.
            model["type"] = "RequestInProgressException"
    headers = [("content-type", "application/json")]
    if retry_after := getattr(error, "retry_after", None):
        headers.append(("retry-after", str(retry_after)))
    return Response(status, tuple(headers), json.dumps({"error": model}).encode())
