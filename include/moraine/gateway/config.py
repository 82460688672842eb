"""What a catalog says of itself in /v1/config, with what the gateway adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

_DURATION = TypeAdapter(timedelta)
LIFETIME = "idempotency-key-lifetime"
SUPPORTED = "idempotency-key-supported"


def iso_duration(duration: timedelta) -> str:
    """`PT30M`."""
    return str(_DURATION.dump_python(duration, mode="json"))


def advertise(config: Mapping[str, Any], lifetime: timedelta) -> dict[str, Any]:
    """Say, in both places where clients look, that keys are understood and for how long."""
    words = iso_duration(lifetime)
    properties = config.get("properties")
    return {
        **config,
        LIFETIME: words,
        "properties": {
            **(properties if isinstance(properties, dict) else {}),
            SUPPORTED: "true",
            LIFETIME: words,
        },
    }


def keep_clients_here(
    config: Mapping[str, Any], leads_past: Callable[[str], bool], own: str
) -> dict[str, Any]:
    """Some catalogs tell clients their own address: those would go past the gateway."""

    def corrected(layer: Any) -> Any:
        uri = layer.get("uri") if isinstance(layer, dict) else None
        return {**layer, "uri": own} if isinstance(uri, str) and leads_past(uri) else layer

    names = [name for name in ("defaults", "overrides") if name in config]
    return {**config, **{name: corrected(config[name]) for name in names}}
