"""What a catalog's clients are told when something goes wrong, and which answer means what.

"Failed" and "unknown" are two things: after an `OutcomeUnknown`, and only then, the catalog may
have done what it was asked to. Look before you repeat it or clean up.
"""

from __future__ import annotations

from collections.abc import Mapping

import requests

from moraine.catalog.answers import read_error, words_of
from moraine.catalog.endpoints import Endpoint
from moraine.errors import MoraineError
from moraine.idempotency.key import HEADER


class CatalogError(MoraineError):
    """The catalog did not do what it was asked to."""

    code = "CATALOG_ERROR"
    http_status = 502

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        named: str = "",
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The catalog's answer, if there was one."""
        self.named = named
        """The type in the catalog's error, say `NoSuchTableException`."""
        self.key = key
        """The idempotency key, if the request had one."""


class EndpointNotSupported(CatalogError):
    """The catalog does not advertise this endpoint; nothing was sent."""


class BadRequest(CatalogError):
    """The catalog finds the request malformed."""


class NotAuthorized(CatalogError):
    """The catalog wants other credentials, or newer ones."""


class Forbidden(CatalogError):
    """The catalog does not allow that to this principal."""


class NotFound(CatalogError):
    """The catalog has nothing there."""


class NoSuchNamespace(NotFound):
    """The catalog has no such namespace."""


class NoSuchTable(NotFound):
    """The catalog has no such table."""


class NoSuchView(NotFound):
    """The catalog has no such view."""


class AlreadyExists(CatalogError):
    """The name is taken."""


class NamespaceNotEmpty(CatalogError):
    """The namespace still has something in it."""


class CommitFailed(CatalogError):
    """A requirement does not hold: load anew, and commit on top of that."""


class Unprocessable(CatalogError):
    """The catalog understands the request and cannot act on it."""


class OperationNotSupported(CatalogError):
    """The catalog cannot do that."""


class TooManyRequests(CatalogError):
    """The catalog wants fewer requests; this one was not carried out."""


class ServiceUnavailable(CatalogError):
    """The catalog cannot be reached, or is not ready; nothing was changed."""


class ServerError(CatalogError):
    """The catalog failed, or its answer cannot be read; nothing was to be changed."""


class IdempotencyKeyConflict(CatalogError, requests.RequestException):
    """The key was used before, for another request. This one was not carried out."""


# --- Unknown --------------------------------------------------------------------------------


class OutcomeUnknown(CatalogError):
    """The catalog may or may not have done it. Look before you repeat it or clean up."""

    code = "OUTCOME_UNKNOWN"


class CommitStateUnknown(OutcomeUnknown):
    """The commit may or may not be in the table. Delete none of its files before you know."""


class RequestInProgress(OutcomeUnknown, requests.RequestException):
    """The catalog is still at it. Ask again later, with the same key."""


class ReplayFailed(OutcomeUnknown, requests.RequestException):
    """The catalog did it and cannot tell any more what came of it. Do not repeat it."""


class IdempotencyWindowExpired(OutcomeUnknown, requests.RequestException):
    """The catalog may have forgotten the key, so that a repetition would not be safe."""

    def __init__(
        self,
        message: str,
        *,
        key: str,
        attempts: int,
        response: requests.Response | None = None,
        error: requests.RequestException | None = None,
    ) -> None:
        super().__init__(message, status=getattr(response, "status_code", None), key=key)
        self.attempts = attempts
        self.response = response
        """The last answer, if the last attempt had one."""
        self.error = error
        """What ended the last attempt, if it had no answer."""


# --- Which answer means what ----------------------------------------------------------------

# Iceberg's names say more than the status; the tables below are for servers that give none.
_BY_TYPE: dict[str, type[CatalogError]] = {
    "NoSuchNamespaceException": NoSuchNamespace,
    "NoSuchTableException": NoSuchTable,
    "NoSuchViewException": NoSuchView,
    "NotFoundException": NotFound,
    "AlreadyExistsException": AlreadyExists,
    "NamespaceNotEmptyException": NamespaceNotEmpty,
    "CommitFailedException": CommitFailed,
}
_BY_STATUS: dict[int, type[CatalogError]] = {
    400: BadRequest,
    401: NotAuthorized,
    403: Forbidden,
    404: NotFound,
    405: OperationNotSupported,
    406: OperationNotSupported,
    409: AlreadyExists,
    419: NotAuthorized,
    422: Unprocessable,
    429: TooManyRequests,
    501: OperationNotSupported,
    503: ServiceUnavailable,
}
_COMMIT: dict[int, type[CatalogError]] = {404: NoSuchTable, 409: CommitFailed}
_BY_ENDPOINT: Mapping[Endpoint, dict[int, type[CatalogError]]] = {
    Endpoint.LIST_NAMESPACES: {404: NoSuchNamespace},
    Endpoint.LOAD_NAMESPACE: {404: NoSuchNamespace},
    Endpoint.DROP_NAMESPACE: {404: NoSuchNamespace, 409: NamespaceNotEmpty},
    Endpoint.UPDATE_NAMESPACE: {404: NoSuchNamespace},
    Endpoint.LIST_TABLES: {404: NoSuchNamespace},
    Endpoint.CREATE_TABLE: {404: NoSuchNamespace},
    Endpoint.REGISTER_TABLE: {404: NoSuchNamespace},
    Endpoint.LOAD_TABLE: {404: NoSuchTable},
    Endpoint.TABLE_EXISTS: {404: NoSuchTable},
    Endpoint.COMMIT_TABLE: _COMMIT,
    Endpoint.COMMIT_TRANSACTION: _COMMIT,
    Endpoint.DROP_TABLE: {404: NoSuchTable},
    Endpoint.RENAME_TABLE: {404: NoSuchTable},
    Endpoint.CREATE_VIEW: {404: NoSuchNamespace},
    Endpoint.LOAD_VIEW: {404: NoSuchView},
    Endpoint.REPLACE_VIEW: {404: NoSuchView, 409: CommitFailed},
    Endpoint.DROP_VIEW: {404: NoSuchView},
    Endpoint.RENAME_VIEW: {404: NoSuchView},
}
_COMMITS = {Endpoint.COMMIT_TABLE, Endpoint.COMMIT_TRANSACTION, Endpoint.REPLACE_VIEW}
_NOT_IMPLEMENTED = 501


def error_for(endpoint: Endpoint, response: requests.Response) -> CatalogError:
    """The error that tells of an answer other than success."""
    status, error = response.status_code, read_error(response)
    named = str(error.get("type") or "")
    kind = class_for(endpoint, status, named)
    message = f"The catalog answered {status} to {endpoint}: {words_of(response, error)}"
    return kind(message, status=status, named=named, key=key_of(response.request))


def class_for(endpoint: Endpoint, status: int, named: str = "") -> type[CatalogError]:
    """`named` is the type in the server's error, if it gave one."""
    if status >= 500 and status != _NOT_IMPLEMENTED:
        read = _BY_STATUS.get(status, ServerError)
        return unknown_for(endpoint) if endpoint.mutates else read
    tables = (_BY_ENDPOINT.get(endpoint, {}), _BY_STATUS)
    by_status = next((table[status] for table in tables if status in table), CatalogError)
    # A name is trusted only to say more about what the status says.
    return _BY_TYPE.get(named, by_status) if status in (400, 404, 409) else by_status


def unknown_for(endpoint: Endpoint) -> type[OutcomeUnknown]:
    return CommitStateUnknown if endpoint in _COMMITS else OutcomeUnknown


def key_of(request: requests.PreparedRequest | requests.Request | None) -> str | None:
    return request.headers.get(HEADER) if request is not None else None
