"""What a catalog holds, in the terms of the Iceberg REST spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

VENDED_FIELDS = ("config", "storage-credentials")
"""Fields of a loaded table or view that may have credentials in them. Every load makes new ones."""


class ObjectKind(StrEnum):
    NAMESPACE = "namespace"
    TABLE = "table"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Identifier:
    """A namespace, table or view, by its name. A namespace has no `name` of its own."""

    kind: ObjectKind
    namespace: tuple[str, ...]
    name: str = ""

    def __str__(self) -> str:
        return ".".join([*self.namespace, self.name] if self.name else self.namespace)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Identifier:
        return cls(ObjectKind(data["kind"]), tuple(data["namespace"]), data.get("name", ""))
