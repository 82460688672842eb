"""What a catalog says of itself: properties, endpoints, and how long it remembers keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from moraine.catalog.endpoints import DEFAULTS
from moraine.catalog.properties import as_texts

_LIFETIME = "idempotency-key-lifetime"
_SUPPORTED = "idempotency-key-supported"
_MOST_AGE = 3600.0
_SUSPECT = {400, 404, 405, 406, 501}
_durations = TypeAdapter(timedelta)

Place = tuple[str, str]
"""The uri of a catalog, and the warehouse that is asked for there."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    defaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    endpoints: frozenset[str] = frozenset(map(str, DEFAULTS))
    key_lifetime: timedelta | None = None
    """None unless the server honours keys and says for how long."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ServerConfig:
        named = body.get("endpoints")
        listed = named if isinstance(named, list) else []
        given = frozenset(" ".join(str(one).split()) for one in listed)
        return cls(
            _texts(body.get("defaults")),
            _texts(body.get("overrides")),
            given or frozenset(map(str, DEFAULTS)),
            read_lifetime(body),
        )

    def merged(self, own: Mapping[str, str]) -> dict[str, str]:
        """The properties that hold for a client with properties of its own."""
        return {**self.defaults, **own, **self.overrides}


def read_lifetime(body: Mapping[str, Any]) -> timedelta | None:
    """How long the server honours a key, if it does.

    Iceberg's form has the lifetime at the top level, and its presence says that keys are
    supported. Polaris' has `properties`, of which both must be right. The first one decides where
    a server has both.
    """
    if body.get(_LIFETIME) is not None:
        return _positive_duration(body[_LIFETIME])
    properties = body.get("properties")
    if isinstance(properties, Mapping) and properties.get(_SUPPORTED) == "true":
        return _positive_duration(properties.get(_LIFETIME))
    return None


def _positive_duration(text: Any) -> timedelta | None:
    # Pydantic reads ISO-8601, but takes clock times and numbers as well.
    if not isinstance(text, str) or not text.startswith("P"):
        return None
    try:
        duration = _durations.validate_python(text)
    except ValidationError:
        return None
    return duration if duration > timedelta(0) else None


def _texts(properties: Any) -> dict[str, str]:
    texts = as_texts(properties if isinstance(properties, Mapping) else {})
    return {name: str(value) for name, value in texts.items()}


def is_suspect(status: int, named: str) -> bool:
    """Whether an answer looks as if the server had other routes by now than its configuration has.

    `named` is the type in its error: one that knows the route says what it has not found.
    """
    return status in _SUSPECT and not named.startswith("NoSuch")


class ConfigCache:
    """Configurations, each fetched once an hour by one thread; what cannot be had is not kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # One that its holder may take again: what fetches may also find that it must forget.
        self._lock = threading.RLock()
        self._known: dict[Place, tuple[ServerConfig, float]] = {}

    def get(self, place: Place, fetch: Callable[[], ServerConfig | None]) -> ServerConfig | None:
        with self._lock:
            config, fetched_at = self._known.get(place, (None, 0.0))
            if config is not None and self._clock() - fetched_at < _MOST_AGE:
                return config
            self._known.pop(place, None)
            asked_at = self._clock()
            config = fetch()
            if config is not None:
                self._known[place] = config, asked_at
            return config

    def forget(self, place: Place) -> None:
        """So that it is fetched anew, because the server seems to have become another."""
        with self._lock:
            self._known.pop(place, None)
