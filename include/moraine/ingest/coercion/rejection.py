"""Why a line is refused."""

from __future__ import annotations

from typing import Any

from moraine.errors import MoraineError

SHOWN = 80
"""Characters of a value that an error repeats."""


class LineRejected(MoraineError):
    """A line of the body does not fit the table."""

    code = "invalid_line"
    http_status = 400

    def __init__(
        self, line: int, column: str | None, value: str | None, expected: str, reason: str
    ) -> None:
        """`value` is as sent, and cut here; None for what is not there at all."""
        self.line = line
        self.column = None if column is None else cut(column)
        self.value = None if value is None else cut(value)
        self.expected = expected
        self.reason = reason
        where = f"Line {line}" if column is None else f"Line {line}, column {self.column}"
        got = "" if self.value is None else f"; got {self.value}"
        super().__init__(f"{where}: {reason}; expected {expected}{got}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.column, self.value, self.expected, self.reason)


class Unfit(ValueError):
    """A value does not fit its column; whoever knows the line says so in a LineRejected."""


def cut(text: str) -> str:
    """Short enough for a message, on one line, and printable whatever it holds."""
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    if short.isprintable():
        return short
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in short
    )
