"""`GET /v1/config`: what a catalog says about itself, properties and the lifetime of keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from moraine.settings.properties import texts_of

_LIFETIME = "idempotency-key-lifetime"
_SUPPORTED = "idempotency-key-supported"
_MAX_AGE = 3600.0
_SUSPECT = {400, 404, 405, 406, 501}
_durations = TypeAdapter(timedelta)

Place = tuple[str, str]
"""The uri of a catalog, and the warehouse that is asked for there."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    defaults: Mapping[str, str] = field(default_factory=dict, repr=False)
    overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_lifetime: timedelta | None = None
    """None unless the server supports keys and says for how long it remembers them."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ServerConfig:
        return cls(
            texts_of(body.get("defaults")), texts_of(body.get("overrides")), read_lifetime(body)
        )

    def merged(self, own: Mapping[str, str]) -> dict[str, str]:
        """The properties that apply to a client with properties of its own."""
        return {**self.defaults, **own, **self.overrides}


def read_lifetime(body: Mapping[str, Any]) -> timedelta | None:
    """How long the server remembers a key; None if it does not support keys.

    Iceberg's form has the lifetime at the top level; its presence says that keys are supported.
    Polaris' form has two entries in `properties`, and both must be right. If a server has both
    forms, Iceberg's decides.
    """
    if body.get(_LIFETIME) is not None:
        return _positive_duration(body[_LIFETIME])
    properties = body.get("properties")
    if isinstance(properties, Mapping) and properties.get(_SUPPORTED) == "true":
        return _positive_duration(properties.get(_LIFETIME))
    return None


def with_lifetime(body: Mapping[str, Any], lifetime: timedelta) -> dict[str, Any]:
    """The same configuration, advertising in both forms that keys are supported."""
    duration = _durations.dump_python(lifetime, mode="json")
    properties = body.get("properties")
    own = properties if isinstance(properties, dict) else {}
    return {
        **body,
        _LIFETIME: duration,
        "properties": {**own, _SUPPORTED: "true", _LIFETIME: duration},
    }


def with_uri(
    body: Mapping[str, Any], uri: str, is_replaced: Callable[[str], bool]
) -> dict[str, Any]:
    """The same configuration, with another `uri` in the place of those that are to be replaced."""

    def corrected(layer: Any) -> Any:
        given = layer.get("uri") if isinstance(layer, dict) else None
        return {**layer, "uri": uri} if isinstance(given, str) and is_replaced(given) else layer

    names = [name for name in ("defaults", "overrides") if name in body]
    return {**body, **{name: corrected(body[name]) for name in names}}


def _positive_duration(text: Any) -> timedelta | None:
    # Pydantic reads ISO-8601, but takes clock times and numbers as well.
    if not isinstance(text, str) or not text.startswith("P"):
        return None
    try:
        duration = _durations.validate_python(text)
    except ValidationError:
        return None
    return duration if duration > timedelta(0) else None


def is_suspect(status: int, named: str) -> bool:
    """Whether an answer suggests that the server's configuration has changed.

    `named` is the type in its error: a server that knows the route says what it did not find.
    """
    return status in _SUSPECT and not named.startswith("NoSuch")


class ConfigCache:
    """Configurations, each fetched once an hour by one thread. A failed fetch is not cached."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Re-entrant: `fetch` may call `forget`.
        self._lock = threading.RLock()
        self._known: dict[Place, tuple[ServerConfig, float]] = {}

    def get(self, place: Place, fetch: Callable[[], ServerConfig | None]) -> ServerConfig | None:
        with self._lock:
            config, fetched_at = self._known.get(place, (None, 0.0))
            if config is not None and self._clock() - fetched_at < _MAX_AGE:
                return config
            self._known.pop(place, None)
            asked_at = self._clock()
            config = fetch()
            if config is not None:
                self._known[place] = config, asked_at
            return config

    def forget(self, place: Place) -> None:
        """Have it fetched again, because the server seems to have changed."""
        with self._lock:
            self._known.pop(place, None)
