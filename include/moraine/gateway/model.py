"""What a request is meant to change in a catalog, and whether it has. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from moraine.iceberg.endpoints import OPERATION_IDS, Endpoint
from moraine.iceberg.model import Identifier

GATEWAY_PATH = "/catalog"
"""Where the gateway is mounted. The paths of keys begin with it."""

_MUTATIONS = {operation_id: endpoint for endpoint, operation_id in OPERATION_IDS.items()}


@dataclass(frozen=True, slots=True)
class Intent:
    """What a mutation is meant to change, small enough to be kept with its key.

    A state check needs nothing else: not the request's body, nor the process that sent it.
    """

    endpoint: Endpoint
    targets: tuple[Identifier, ...]
    """The objects to look at. Of a rename first the source, then the destination."""
    effect: Mapping[str, Any] = field(default_factory=dict)
    """What must be true of the targets once the request has been executed."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """What was seen of the first target before the request was sent, where that matters:
    `exists`, and `uuid` of a table or view."""

    def to_json(self) -> dict[str, Any]:
        return {
            "operation": OPERATION_IDS[self.endpoint],
            "targets": [asdict(target) for target in self.targets],
            "effect": self.effect,
            "before": self.before,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Intent:
        return cls(
            _MUTATIONS[data["operation"]],
            tuple(Identifier.from_json(target) for target in data["targets"]),
            data.get("effect") or {},
            data.get("before") or {},
        )


class Verdict(StrEnum):
    """What the catalog's state says about a request whose outcome is unknown."""

    APPLIED = "applied"
    """The change is there: answer success, execute nothing."""
    NOT_APPLIED = "not applied"
    """The change is not there, and may be made: the catalog's own checks decide."""
    INCOMPATIBLE = "incompatible"
    """Something else is in its place."""


State = Mapping[Identifier, Mapping[str, Any] | None]
"""The catalog's answer to a load of each target; None if there is no such object."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer made from the catalog's current state."""

    status: int
    body: Mapping[str, Any] | None = None
