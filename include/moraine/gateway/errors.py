"""Errors in the form of Iceberg's clients: its ErrorModel, with a subtype if there is one."""

from __future__ import annotations

import json
import math

from moraine.errors import BadRequest, MoraineError, Unauthorized
from moraine.idempotency.model import Response
from moraine.idempotency.service import RequestInProgress


class CatalogUnknown(MoraineError):
    """The gateway knows no catalog of that name."""

    code = "CATALOG_UNKNOWN"
    http_status = 404


class WrongWarehouse(BadRequest):
    """Only the warehouse of the settings is served."""

    code = "WRONG_WAREHOUSE"


class UpstreamUnreachable(MoraineError):
    """The catalog behind the gateway cannot be reached."""

    code = "CATALOG_UNREACHABLE"
    http_status = 503
    retry_after = 1


class CatalogBusy(UpstreamUnreachable):
    """All connections to the catalog behind the gateway are in use; nothing was sent to it."""

    code = "CATALOG_BUSY"


class UpstreamSilent(MoraineError):
    """The catalog behind the gateway did not answer in time."""

    code = "CATALOG_TIMEOUT"
    http_status = 504


class BadAnswer(MoraineError):
    """The connection to the catalog behind the gateway broke."""

    code = "CATALOG_CONNECTION_LOST"
    http_status = 502


class UpstreamTooLarge(MoraineError):
    """The catalog's answer is larger than gateway.limits.answer-bytes."""

    code = "CATALOG_ANSWER_TOO_LARGE"
    http_status = 502


class ClientTooSlow(MoraineError):
    """The client does not read its answer."""

    code = "CLIENT_TOO_SLOW"
    http_status = 408


class TableHidden(MoraineError):
    """The table does not exist."""

    code = "NO_SUCH_TABLE"
    http_status = 404


class NameTaken(MoraineError):
    """A table of that name is being purged; wait until it is gone."""

    code = "TABLE_BEING_PURGED"
    http_status = 409


# Types that Iceberg's clients know; for other types they use the status.
_TYPES = {
    TableHidden: "NoSuchTableException",
    NameTaken: "AlreadyExistsException",
    UpstreamUnreachable: "ServiceUnavailableException",
    UpstreamSilent: "CommitStateUnknownException",
    BadAnswer: "CommitStateUnknownException",
    UpstreamTooLarge: "CommitStateUnknownException",
    RequestInProgress: "RequestInProgressException",
}
# Iceberg's clients take a 409 for a failure and delete the files of the commit. They take a 503 for
# an unknown outcome and retry the request.
_STATUSES: dict[type[MoraineError], int] = {RequestInProgress: 503}
_BY_STATUS = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    408: "BadRequestException",
    409: "CommitFailedException",
    413: "BadRequestException",
    415: "BadRequestException",
    422: "UnprocessableEntityException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
}


def error_response(error: MoraineError) -> Response:
    own: int = getattr(error, "status", error.http_status)
    status = _STATUSES.get(type(error), own)
    kind = _TYPES.get(type(error)) or _BY_STATUS.get(status, "InternalServerError")
    model = {"message": str(error), "type": kind, "code": status}
    if error.subtype:
        model["subtype"] = error.subtype
    headers = [("content-type", "application/json")]
    if isinstance(error, Unauthorized):
        headers.append(("www-authenticate", "Bearer"))
    if status == 408:
        headers.append(("connection", "close"))  # the rest would come just as slowly
    if error.retry_after is not None:
        headers.append(("retry-after", str(math.ceil(error.retry_after))))
    return Response(status, tuple(headers), json.dumps({"error": model}).encode())


def without_stack(response: Response) -> Response:
    """A catalog's error without its stack trace, which is not for callers."""
    if response.status < 400 or b'"stack"' not in response.body:
        return response
    try:
        model = json.loads(response.body)
        del model["error"]["stack"]
    except (ValueError, KeyError, TypeError):
        return response
    headers = tuple(pair for pair in response.headers if pair[0].lower() != "content-length")
    return Response(response.status, headers, json.dumps(model).encode())
