"""What the task framework asks of an operation. It knows no operation by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from moraine.errors import UnknownOperation


class Parameters(BaseModel, ABC):
    """An operation's payload, validated. What it dumps is all that reaches the ledger."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What the task is about, for people and filters."""

    @property
    @abstractmethod
    def exclusive(self) -> bool:
        """Whether at most one live task of the type may be about this subject."""


@dataclass(frozen=True, slots=True)
class Operation:
    task_type: str
    """As the ledger stores it; also the name of its retry policy in the settings."""
    parameters: type[Parameters]
    """The model of `operation_parameters`."""
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
    def parameter_models(self) -> list[type[Parameters]]:
        return list(dict.fromkeys(o.parameters for o in self._operations.values()))

    @property
    def names(self) -> list[str]:
        return sorted(self._operations)
