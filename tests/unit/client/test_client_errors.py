"""The errors that keys bring with them."""

from __future__ import annotations

import pytest
import requests

from moraine.client import errors
from moraine.client.errors import (
    CatalogError,
    IdempotencyKeyConflict,
    IdempotencyReplayFailed,
    IdempotencyWindowExpired,
    OutcomeUnknown,
    RequestStillInProgress,
)


def test_client_error_codes_distinguish_failed_from_unknown() -> None:
    family = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    kinds = {kind for kind in family if issubclass(kind, CatalogError)}
    assert kinds >= {IdempotencyKeyConflict, IdempotencyWindowExpired}
    for kind in kinds:
        unknown = issubclass(kind, OutcomeUnknown)
        assert kind.code == ("OUTCOME_UNKNOWN" if unknown else "CATALOG_ERROR")


@pytest.mark.parametrize(
    "kind", [IdempotencyKeyConflict, RequestStillInProgress, IdempotencyReplayFailed]
)
def test_client_error_is_a_requests_error_too(kind: type[CatalogError]) -> None:
    response = requests.Response()
    response.status_code = 409
    error = kind("x", key="k", response=response)
    assert isinstance(error, requests.RequestException)
    assert (str(error), error.status, error.key, error.response) == ("x", 409, "k", response)


def test_client_error_of_an_expired_window_has_the_last_attempt() -> None:
    lost = requests.ReadTimeout()
    expired = IdempotencyWindowExpired("x", key="k", attempts=3, error=lost)
    assert isinstance(expired, OutcomeUnknown)
    assert (expired.key, expired.attempts, expired.status, expired.error) == ("k", 3, None, lost)
