"""What a catalog can be asked to change, what such a request is meant to bring about, and whether
it has come about. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Operation(StrEnum):
    """Every mutation of the Iceberg REST spec that an Idempotency-Key makes repeatable."""

    CREATE_NAMESPACE = "createNamespace"
    DROP_NAMESPACE = "dropNamespace"
    UPDATE_NAMESPACE = "updateProperties"
    CREATE_TABLE = "createTable"
    REGISTER_TABLE = "registerTable"
    COMMIT_TABLE = "updateTable"
    DROP_TABLE = "dropTable"
    RENAME_TABLE = "renameTable"
    COMMIT_TRANSACTION = "commitTransaction"
    CREATE_VIEW = "createView"
    REGISTER_VIEW = "registerView"
    REPLACE_VIEW = "replaceView"
    DROP_VIEW = "dropView"
    RENAME_VIEW = "renameView"


class Kind(StrEnum):
    NAMESPACE = "namespace"
    TABLE = "table"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Target:
    """Something in a catalog, by its name. A namespace has no `name` of its own."""

    kind: Kind
    namespace: tuple[str, ...]
    name: str = ""

    def __str__(self) -> str:
        return ".".join([*self.namespace, self.name] if self.name else self.namespace)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        return cls(Kind(data["kind"]), tuple(data["namespace"]), data.get("name", ""))


@dataclass(frozen=True, slots=True)
class Intent:
    """What a mutation is meant to bring about, small enough to be kept with its key.

    A state check needs nothing else: no request body, no memory of the process that sent it.
    """

    operation: Operation
    targets: tuple[Target, ...]
    """What has to be looked at. Of a rename first the source, then the destination."""
    effect: Mapping[str, Any] = field(default_factory=dict)
    """What must be true of the targets once the request has been carried out."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """What was seen of the first target before the request was sent, where that matters:
    `exists`, and `uuid` of a table or view."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "targets": [asdict(target) for target in self.targets]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Intent:
        return cls(
            Operation(data["operation"]),
            tuple(Target.from_json(target) for target in data["targets"]),
            data.get("effect") or {},
            data.get("before") or {},
        )


class Verdict(StrEnum):
    """What a look at the catalog says of a request whose outcome is unknown."""

    APPLIED = "applied"
    """The change is there: answer success, execute nothing."""
    NOT_APPLIED = "not applied"
    """It is not, and may be made: the catalog's own checks decide."""
    INCOMPATIBLE = "incompatible"
    """Something else is in its place."""


State = Mapping[Target, Mapping[str, Any] | None]
"""What the catalog answered to a load of each target; None where it has no such thing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer made from the catalog's present state."""

    status: int
    body: Mapping[str, Any] | None = None
