from __future__ import annotations

from support.gateway_fixtures import (
    caller,
    direct,
    gateway_stack,
    ledger,
    other_caller,
    rows,
    running_caller,
    running_other,
    running_way,
    scene,
    start_gateway,
    way,
)

__all__ = [
    "caller",
    "direct",
    "gateway_stack",
    "ledger",
    "other_caller",
    "rows",
    "running_caller",
    "running_other",
    "running_way",
    "scene",
    "start_gateway",
    "way",
]
