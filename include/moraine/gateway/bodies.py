"""JSON of requests: read strictly by the spec, and written so that an intent can keep it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moraine.iceberg.metadata import DIGEST, digest
from moraine.secret_names import is_secret_property

# PostgreSQL refuses these in jsonb, where intents are kept: NUL and halves of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LONGS = range(-(2**63), 2**63)
_MAX_VALUE = 200


class MalformedBody(ValueError):
    """A request body does not follow the Iceberg REST spec. The message names the field."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object and its path in the request. A field that is null counts as absent."""

    fields: Mapping[str, Any]
    path: str = ""

    @classmethod
    def of(cls, value: Any, path: str = "") -> JsonObject:
        if not isinstance(value, Mapping):
            raise MalformedBody(f"{path or 'body'}: must be an object")
        return cls(value, path)

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def text(self, name: str) -> str:
        return _text(self._required(name), self._path(name))

    def integer(self, name: str) -> int:
        return _integer(self._required(name), self._path(name))

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise MalformedBody(f"{self._path(name)}: must be true or false")
        return bool(value)

    def object(self, name: str) -> JsonObject:
        return JsonObject.of(self._required(name), self._path(name))

    def objects(self, name: str) -> list[JsonObject]:
        return [JsonObject.of(item, path) for path, item in self._items(name)]

    def texts(self, name: str) -> list[str]:
        return [_text(item, path) for path, item in self._items(name)]

    def integers(self, name: str) -> list[int]:
        return [_integer(item, path) for path, item in self._items(name)]

    def text_map(self, name: str) -> dict[str, str]:
        entries = self.object(name)
        return {
            _text(key, f"{entries.path}: a name"): _text(value, entries._path(key))
            for key, value in entries.fields.items()
        }

    def _items(self, name: str) -> list[tuple[str, Any]]:
        value = self._required(name)
        if not isinstance(value, list | tuple):
            raise MalformedBody(f"{self._path(name)}: must be an array")
        return [(f"{self._path(name)}[{index}]", item) for index, item in enumerate(value)]

    def _required(self, name: str) -> Any:
        if not self.has(name):
            raise MalformedBody(f"{self._path(name)}: is missing")
        return self.fields[name]

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise MalformedBody(f"{path}: must be a string")
    if _UNSTORABLE.search(value):
        raise MalformedBody(f"{path}: has a character that text cannot have")
    return value


def _integer(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in _LONGS:
        raise MalformedBody(f"{path}: must be a 64-bit integer")
    return value


def storable(name: str, value: Any) -> Any:
    """A property's value as an intent may keep it: short, and never a secret."""
    if not isinstance(value, str):
        return value
    # A value that looks like a digest is digested too, so that it cannot equal another's digest.
    is_plain = len(value) <= _MAX_VALUE and not value.startswith(DIGEST)
    return value if is_plain and not is_secret_property(name) else digest(value)


def storable_properties(properties: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: storable(name, value) for name, value in (properties or {}).items()}
