"""What the task framework asks of an operation. It knows no operation by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from moraine.access.model import QualifiedName
from moraine.errors import UnknownOperation
from moraine.tasks.model import Task


class Parameters(BaseModel, ABC):
    """An operation's payload, validated. What it dumps is all that reaches the ledger."""

    @property
    @abstractmethod
    def table(self) -> QualifiedName:
        """The table that the task is about: the policy is asked about it."""

    @property
    def subject(self) -> str:
        """The same for people and filters: `catalog.namespace.table`."""
        return str(self.table)

    @property
    @abstractmethod
    def exclusive(self) -> bool:
        """Whether at most one live task of the type may be about this subject."""

    def is_met_by(self, other: Parameters) -> bool:
        """Whether a live task with these other parameters, about the same subject, does everything
        that is asked for here. Then both callers get its outcome; by default the second is refused
        until the first task has ended."""
        del other
        return False


@dataclass(frozen=True, slots=True)
class ResultFigure:
    """A number in an operation's results. The API always answers it, and the metrics sum it up."""

    name: str
    """Its name in the result; as a metric it is `moraine_NAME`."""
    description: str


@dataclass(frozen=True, slots=True)
class OutcomeExample:
    """An operation's task for the documentation of the API."""

    progress: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    task_type: str
    """As the ledger stores it; also the name of its retry policy in the settings."""
    parameters: type[Parameters]
    """The model of `operation_parameters`."""
    dag_id: str
    aliases: frozenset[str] = frozenset()
    form_of: Callable[[Task], Mapping[str, Any]] = lambda _task: {}
    """Fills in the form of the Dag for the run of a task; fields without a default are required."""
    figures: tuple[ResultFigure, ...] = ()
    example: OutcomeExample = field(default=OutcomeExample(), compare=False)

    def result_of(self, result: Mapping[str, Any] | None) -> dict[str, Any]:
        """A task's result with every figure that the operation reports."""
        return {**dict.fromkeys((figure.name for figure in self.figures), 0), **(result or {})}


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
    def all(self) -> list[Operation]:
        return list(dict.fromkeys(self._operations[name] for name in self.names))

    @property
    def figures(self) -> list[ResultFigure]:
        return list(dict.fromkeys(figure for one in self.all for figure in one.figures))

    @property
    def parameter_models(self) -> list[type[Parameters]]:
        return list(dict.fromkeys(operation.parameters for operation in self.all))

    @property
    def names(self) -> list[str]:
        return sorted(self._operations)
