"""What the task framework asks of an operation. It knows no operation by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from moraine.errors import UnknownOperation


class Parameters(Protocol):
    """An operation's payload, validated. What it dumps is all that reaches the ledger."""

    @property
    def subject(self) -> str: ...

    @property
    def exclusive(self) -> bool: ...

    def model_dump(self, **options: Any) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Operation:
    task_type: str
    """As the ledger stores it; also the name of its retry policy in the settings."""
    parameters: type[BaseModel]
    """The model of `operation_parameters`; its instances satisfy `Parameters`."""
    dag_id: str
    aliases: frozenset[str] = frozenset()


class Registry:
    """The operations of this deployment, by every name callers may use."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations: Mapping[str, Operation] = {
            name: operation
            for operation in operations
            for name in {operation.task_type, *operation.aliases}
        }

    def named(self, operation_type: str) -> Operation:
        try:
            return self._operations[operation_type]
        except KeyError:
            known = ", ".join(sorted(self._operations))
            raise UnknownOperation(
                f"operation_type {operation_type[:100]!r} is not known here; known are {known}."
            ) from None

    @property
    def names(self) -> list[str]:
        return sorted(self._operations)
