"""Errors that keys bring with them. All others are PyIceberg's, or those of `requests`.

"Failed" and "unknown" are two things. After an `OutcomeUnknown` the catalog may have done what it
was asked to: look before you repeat the operation or delete its files.
"""

from __future__ import annotations

from typing import Any

import requests

from moraine.errors import MoraineError


class CatalogError(MoraineError, requests.RequestException, code="CATALOG_ERROR", http_status=502):
    """The catalog did not do what it was asked to."""

    def __init__(
        self,
        message: str,
        *,
        key: str,
        request: requests.PreparedRequest | None = None,
        response: requests.Response | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.request = request
        self.response = response
        """The answer of the last attempt; None if it had none."""

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status_code


class IdempotencyKeyConflict(CatalogError):
    """The key was used before, for another request; this attempt was not carried out."""


class OutcomeUnknown(CatalogError, code="OUTCOME_UNKNOWN"):
    """The catalog may or may not have done it. Look before you repeat it or clean up."""


class RequestStillInProgress(OutcomeUnknown):
    """The catalog is still executing the request. Ask again later, with the same key."""


class IdempotencyReplayFailed(OutcomeUnknown):
    """The catalog did it and cannot return the result again. Do not repeat it."""


class IdempotencyWindowExpired(OutcomeUnknown):
    """The catalog may have forgotten the key, so a repetition would not be safe."""

    def __init__(
        self, message: str, *, attempts: int, error: requests.RequestException | None, **sent: Any
    ) -> None:
        super().__init__(message, **sent)
        self.attempts = attempts
        self.error = error
        """The error that ended the last attempt, if it had no answer."""
