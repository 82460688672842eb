"""Which answer means what."""

from __future__ import annotations

import pytest
import requests

from moraine.catalog import errors
from moraine.catalog.endpoints import MUTATIONS, Endpoint
from moraine.catalog.errors import (
    AlreadyExists,
    BadRequest,
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    Forbidden,
    IdempotencyKeyConflict,
    IdempotencyWindowExpired,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NotAuthorized,
    NotFound,
    OperationNotSupported,
    OutcomeUnknown,
    ReplayFailed,
    RequestInProgress,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unprocessable,
    class_for,
)
from moraine.catalog.iceberg import snapshot_ids


@pytest.mark.parametrize(
    ("endpoint", "status", "named", "expected"),
    [
        (Endpoint.LOAD_TABLE, 400, "", BadRequest),
        (Endpoint.LOAD_TABLE, 401, "", NotAuthorized),
        (Endpoint.LOAD_TABLE, 419, "", NotAuthorized),
        (Endpoint.LOAD_TABLE, 403, "", Forbidden),
        (Endpoint.LOAD_TABLE, 404, "", NoSuchTable),
        (Endpoint.LOAD_TABLE, 404, "NoSuchNamespaceException", NoSuchNamespace),
        (Endpoint.LOAD_TABLE, 404, "NotFoundException", NotFound),
        (Endpoint.LOAD_TABLE, 406, "", OperationNotSupported),
        (Endpoint.LOAD_TABLE, 422, "", Unprocessable),
        (Endpoint.LOAD_TABLE, 429, "", TooManyRequests),
        (Endpoint.LOAD_TABLE, 500, "", ServerError),
        (Endpoint.LOAD_TABLE, 503, "", ServiceUnavailable),
        (Endpoint.LOAD_TABLE, 302, "", CatalogError),
        (Endpoint.LOAD_VIEW, 404, "", NoSuchView),
        (Endpoint.GET_CONFIG, 404, "", NotFound),
        (Endpoint.CREATE_NAMESPACE, 409, "", AlreadyExists),
        (Endpoint.DROP_NAMESPACE, 409, "", NamespaceNotEmpty),
        (Endpoint.DROP_NAMESPACE, 400, "NamespaceNotEmptyException", NamespaceNotEmpty),
        (Endpoint.CREATE_TABLE, 404, "", NoSuchNamespace),
        (Endpoint.CREATE_TABLE, 409, "", AlreadyExists),
        (Endpoint.CREATE_TABLE, 500, "", OutcomeUnknown),
        (Endpoint.RENAME_TABLE, 404, "NoSuchNamespaceException", NoSuchNamespace),
        (Endpoint.COMMIT_TABLE, 409, "", CommitFailed),
        (Endpoint.COMMIT_TABLE, 500, "", CommitStateUnknown),
        (Endpoint.COMMIT_TABLE, 502, "", CommitStateUnknown),
        (Endpoint.COMMIT_TABLE, 503, "", CommitStateUnknown),
        (Endpoint.COMMIT_TABLE, 504, "", CommitStateUnknown),
        (Endpoint.COMMIT_TABLE, 501, "", OperationNotSupported),
        (Endpoint.COMMIT_TABLE, 500, "CommitFailedException", CommitStateUnknown),
        (Endpoint.COMMIT_TRANSACTION, 503, "", CommitStateUnknown),
        (Endpoint.REPLACE_VIEW, 409, "", CommitFailed),
        (Endpoint.REPLACE_VIEW, 500, "", CommitStateUnknown),
    ],
)
def test_an_answer_becomes_an_error(
    endpoint: Endpoint, status: int, named: str, expected: type[CatalogError]
) -> None:
    assert class_for(endpoint, status, named) is expected


@pytest.mark.parametrize("endpoint", sorted(MUTATIONS))
def test_failed_and_unknown_are_never_the_same(endpoint: Endpoint) -> None:
    for status in (400, 401, 403, 404, 409, 422, 429, 501):
        assert not issubclass(class_for(endpoint, status), OutcomeUnknown)
    for status in (500, 502, 503, 504):
        assert issubclass(class_for(endpoint, status), OutcomeUnknown)


def test_codes_tell_failed_from_unknown() -> None:
    family = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    kinds = {kind for kind in family if issubclass(kind, CatalogError)}
    for kind in kinds:
        unknown = issubclass(kind, OutcomeUnknown)
        assert kind.code == ("OUTCOME_UNKNOWN" if unknown else "CATALOG_ERROR")


def test_what_is_raised_in_transit_is_an_error_of_requests_too() -> None:
    for kind in (IdempotencyKeyConflict, RequestInProgress, ReplayFailed):
        error = kind("x", status=409, key="k")
        assert isinstance(error, requests.RequestException)
        assert (str(error), error.status, error.key) == ("x", 409, "k")
    expired = IdempotencyWindowExpired("x", key="k", attempts=3, error=requests.ReadTimeout())
    assert isinstance(expired, requests.RequestException)
    assert (expired.key, expired.attempts, expired.response) == ("k", 3, None)


def test_snapshots_that_a_commit_adds() -> None:
    updates = [
        {"action": "add-snapshot", "snapshot": {"snapshot-id": 7}},
        {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": 7},
        {"action": "add-snapshot", "snapshot": {"snapshot-id": 9}},
        {"action": "set-properties", "updates": {"a": "b"}},
    ]
    assert snapshot_ids(updates) == {7, 9}
    assert snapshot_ids([]) == set()
