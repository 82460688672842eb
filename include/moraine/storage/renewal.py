"""Credentials that are replaced before they expire."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from moraine.log import get_logger
from moraine.storage.credentials import Credentials

_log = get_logger(__name__)
_LARGEST_MARGIN = timedelta(minutes=5)
_SHARE_OF_LIFETIME = 3
_TRIES_PER_MARGIN = 10
_SHORTEST_PAUSE = timedelta(seconds=1)


def _now() -> datetime:
    return datetime.now(UTC)


class RenewedCredentials:
    """The credentials of the hour, for all threads of a process; one renewal serves them all."""

    def __init__(
        self,
        credentials: Credentials,
        renew: Callable[[], Credentials] | None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._renew = renew
        self._clock = clock
        self._renewing = threading.Lock()
        self._received(credentials)

    def _received(self, credentials: Credentials) -> None:
        now = self._clock()
        self._expires_at = credentials.expires_at
        self._margin = timedelta()
        self._due_at: datetime | None = None
        if self._expires_at is not None:
            lifetime = self._expires_at - now
            self._margin = min(_LARGEST_MARGIN, max(lifetime, timedelta()) / _SHARE_OF_LIFETIME)
            # Even those that come too old are used for a moment: no storm of renewals.
            self._due_at = max(self._expires_at - self._margin, now + _SHORTEST_PAUSE)
        # Last, as other threads may look at it without the lock.
        self._credentials = credentials

    @property
    def expired(self) -> bool:
        return self._expires_at is not None and self._clock() >= self._expires_at

    def current(self) -> Credentials:
        """The credentials to use now; raises what the renewal did once the old ones are over."""
        if self._renew is None or not self._is_due():
            return self._credentials
        # While the old ones hold, nobody waits for the thread that renews them.
        if self._renewing.acquire(blocking=self.expired):
            try:
                if self._is_due():
                    self._try_to_renew(self._renew)
            finally:
                self._renewing.release()
        return self._credentials

    def replace(self, refused: Credentials) -> bool:
        """Get others than those that a store refused; whether there are any."""
        if self._renew is None:
            return False
        with self._renewing:
            if self._credentials is refused:
                self._received(self._renew())
                _log.info("credentials.renewed", because="refused")
            return True

    def _is_due(self) -> bool:
        return self._due_at is not None and self._clock() >= self._due_at

    def _try_to_renew(self, renew: Callable[[], Credentials]) -> None:
        try:
            self._received(renew())
            _log.info("credentials.renewed", because="due")
        except Exception as error:
            if self.expired:
                raise
            pause = max(self._margin / _TRIES_PER_MARGIN, _SHORTEST_PAUSE)
            self._due_at = self._clock() + pause
            _log.warning(
                "credentials.renewal_failed",
                error=type(error).__name__,
                again_in_seconds=pause.total_seconds(),
            )
