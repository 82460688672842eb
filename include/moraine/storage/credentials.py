"""Credentials for stores: the properties that Iceberg's FileIOs take, as catalogs vend them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from moraine.log import get_logger
from moraine.secret_names import is_store_secret
from moraine.settings.properties import texts_of
from moraine.storage.locations import canonical_prefix

_log = get_logger(__name__)
_EXPIRES_AT_MS = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at-ms",
    "adls.token-expires-at-ms",
    "expiration-time",
)
_EXPIRES_AT_MS_PREFIX = "adls.sas-token-expires-at-ms."
# Renewed this long before they expire, or in the last third of a short lifetime.
_MAX_MARGIN = timedelta(minutes=5)
_MARGINS_PER_LIFETIME = 3
_TRIES_PER_MARGIN = 10
_MIN_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class PrefixCredentials:
    """Properties for locations that begin with the prefix."""

    prefix: str
    config: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Credentials:
    """Properties for every location, and properties for prefixes that override them."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_prefix: tuple[PrefixCredentials, ...] = ()

    @classmethod
    def from_load_table(cls, body: Mapping[str, Any]) -> Credentials:
        """As a catalog's answer to loadTable or loadCredentials contains them."""
        return cls(
            texts_of(body.get("config")),
            tuple(
                PrefixCredentials(str(item.get("prefix", "")), texts_of(item.get("config")))
                for item in body.get("storage-credentials") or ()
            ),
        )

    def overlaid(self, other: Credentials) -> Credentials:
        """These, overridden by the other's."""
        return Credentials({**self.config, **other.config}, self.by_prefix + other.by_prefix)

    @property
    def prefixes(self) -> list[str]:
        return [item.prefix for item in self.by_prefix]

    @property
    def vended(self) -> bool:
        """Whether they contain a secret."""
        return any(
            value and is_store_secret(name)
            for config in self._configs()
            for name, value in config.items()
        )

    @property
    def expires_at(self) -> datetime | None:
        """When the first of them expires, if any does."""
        ends = [
            end
            for config in self._configs()
            for name, value in config.items()
            if name in _EXPIRES_AT_MS or name.startswith(_EXPIRES_AT_MS_PREFIX)
            if (end := _read_time(value)) is not None
        ]
        return min(ends, default=None)

    def for_location(self, path: str) -> Mapping[str, str]:
        """The properties for a path: the longest matching prefix wins."""
        prefix = self.prefix_of(path)
        if prefix is None:
            return dict(self.config)
        # If several have the same prefix, the last one overrides the others.
        chosen = [item for item in self.by_prefix if item.prefix == prefix][-1]
        return {**self.config, **chosen.config}

    def prefix_of(self, path: str) -> str | None:
        """The longest prefix that the path begins with; the aliases of a scheme are equal."""
        if not self.by_prefix:
            return None
        canonical = canonical_prefix(path)
        return next((p for start, p in self._longest_first if canonical.startswith(start)), None)

    @cached_property
    def _longest_first(self) -> list[tuple[str, str]]:
        known = [(canonical_prefix(prefix), prefix) for prefix in self.prefixes]
        return sorted(known, key=lambda pair: len(pair[0]), reverse=True)

    def _configs(self) -> list[Mapping[str, str]]:
        return [self.config, *(item.config for item in self.by_prefix)]


def _read_time(milliseconds: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


class RenewedCredentials:
    """Credentials that are renewed before they expire, shared by all threads of a process."""

    def __init__(
        self,
        credentials: Credentials,
        renew: Callable[[], Credentials] | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
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
            self._margin = min(_MAX_MARGIN, max(lifetime, timedelta()) / _MARGINS_PER_LIFETIME)
            # Even credentials that arrive expired are used for a moment: no storm of renewals.
            self._due_at = max(self._expires_at - self._margin, now + _MIN_PAUSE)
        # Last, because other threads read it without the lock.
        self._credentials = credentials

    @property
    def expired(self) -> bool:
        return self._expires_at is not None and self._clock() >= self._expires_at

    def current(self) -> Credentials:
        """The credentials to use now. If the old ones are expired, a failed renewal raises."""
        if self._renew is None or not self._is_due():
            return self._credentials
        # While the old ones are valid, no other thread waits for the one that renews them.
        if self._renewing.acquire(blocking=self.expired):
            try:
                if self._is_due():
                    self._try_to_renew(self._renew)
            finally:
                self._renewing.release()
        return self._credentials

    def replace(self, refused: Credentials) -> bool:
        """Replace credentials that a store refused; False if there is no way to renew them."""
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
            pause = max(self._margin / _TRIES_PER_MARGIN, _MIN_PAUSE)
            self._due_at = self._clock() + pause
            _log.warning(
                "credentials.renewal_failed",
                error=type(error).__name__,
                again_in_seconds=pause.total_seconds(),
            )
