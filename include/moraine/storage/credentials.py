"""What opens a store: the properties that Iceberg's FileIOs take, as catalogs vend them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from moraine.storage.locations import canonical_prefix

_SECRETS = (
    "s3.secret-access-key",
    "s3.session-token",
    "client.secret-access-key",
    "client.session-token",
    "gcs.oauth2.token",
    "gcs.service-account.key",
    "adls.sas-token",
    "adls.connection-string",
    "adls.auth.shared-key.account.key",
    "adls.account-key",
    "adls.client-secret",
    "adls.token",
)
_SECRET_PREFIXES = ("adls.sas-token.", "adls.connection-string.")
_EXPIRES_AT_MS = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at-ms",
    "adls.token-expires-at-ms",
    "expiration-time",
)
_EXPIRES_AT_MS_PREFIX = "adls.sas-token-expires-at-ms."


@dataclass(frozen=True, slots=True)
class PrefixCredentials:
    """What holds for locations that begin with the prefix."""

    prefix: str
    config: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Credentials:
    """Properties for every location, and others laid over them for some."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_prefix: tuple[PrefixCredentials, ...] = ()

    @classmethod
    def none(cls) -> Credentials:
        return cls()

    @classmethod
    def from_load_table(cls, body: Mapping[str, Any]) -> Credentials:
        """As a catalog's answer to loadTable, or to loadCredentials, gives them."""
        return cls(
            _texts(body.get("config")),
            tuple(
                PrefixCredentials(str(item.get("prefix", "")), _texts(item.get("config")))
                for item in body.get("storage-credentials") or ()
            ),
        )

    def overlaid(self, other: Credentials) -> Credentials:
        """These, with the other's laid over them."""
        return Credentials({**self.config, **other.config}, self.by_prefix + other.by_prefix)

    @property
    def prefixes(self) -> list[str]:
        return [item.prefix for item in self.by_prefix]

    @property
    def vended(self) -> bool:
        """Whether there is any secret in them."""
        return any(
            (name in _SECRETS or name.startswith(_SECRET_PREFIXES)) and value
            for config in self._configs()
            for name, value in config.items()
        )

    @property
    def expires_at(self) -> datetime | None:
        """When the first of them ends, if any does."""
        ends = [
            end
            for config in self._configs()
            for name, value in config.items()
            if name in _EXPIRES_AT_MS or name.startswith(_EXPIRES_AT_MS_PREFIX)
            if (end := _read_time(value)) is not None
        ]
        return min(ends, default=None)

    def for_location(self, path: str) -> Mapping[str, str]:
        """The properties for a path: the longest prefix that it begins with wins."""
        prefix = self.prefix_of(path)
        if prefix is None:
            return dict(self.config)
        # Of several for one prefix the last holds: it was laid over the others.
        chosen = [item for item in self.by_prefix if item.prefix == prefix][-1]
        return {**self.config, **chosen.config}

    def prefix_of(self, path: str) -> str | None:
        """The longest prefix that the path begins with, its scheme's aliases being equal."""
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


def _texts(config: object) -> dict[str, str]:
    """Catalogs give texts; but one that gives a number or a boolean is understood, too."""
    if not isinstance(config, Mapping):
        return {}
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in config.items()
        if value is not None
    }
