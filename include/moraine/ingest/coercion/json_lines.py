"""One JSON object, read strictly, with the text of each of its values as sent; and why a line is
refused.

This is the authority on what a line says: the faster reader must agree with it or leave the line to
it.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder, decoder
from typing import Any, NamedTuple, NoReturn

from moraine.errors import MoraineError

MAX_DEPTH = 200
"""Of nested objects and arrays, including the line's own object."""
WHITESPACE = b" \t\r\n"
ONE_OBJECT = "one JSON object"
SHOWN = 80
"""Characters of a value that an error repeats."""

_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Possessive, so that an unclosed quotation mark causes no backtracking.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class LineRejected(MoraineError, code="invalid_line", http_status=400):
    """A line of the body does not fit the table."""

    def __init__(
        self, line: int, column: str | None, value: str | None, expected: str, reason: str
    ) -> None:
        """`value` is as sent, and shortened here; None if there is none."""
        self.line = line
        self.column = None if column is None else cut(column)
        self.value = None if value is None else cut(value)
        self.expected = expected
        self.reason = reason
        where = f"Line {line}" if column is None else f"Line {line}, column {self.column}"
        got = "" if self.value is None else f"; got {self.value}"
        super().__init__(f"{where}: {reason}; expected {expected}{got}")

    def after(self, lines: int) -> LineRejected:
        """The same in a body that has so many lines before."""
        return LineRejected(self.line + lines, self.column, self.value, self.expected, self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.column, self.value, self.expected, self.reason)


class Unfit(ValueError):
    """A value does not fit its column. The caller, who knows the line, raises LineRejected."""


def cut(text: str) -> str:
    """Short enough for a message, on one line, and printable."""
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    if short.isprintable():
        return short
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in short
    )


class Member(NamedTuple):
    name: str
    name_as_sent: str
    value: Any
    """Every number is a float here; `raw` has its digits."""
    raw: str


def has_lone_surrogate(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def read_line(line: bytes, number: int) -> list[Member]:
    """The members of the line's object, in the order sent."""

    def refuse(reason: str, value: str | None = None, column: str | None = None) -> NoReturn:
        raise LineRejected(number, column, value, ONE_OBJECT, reason)

    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        refuse(
            f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8",
            line[:400].decode(errors="replace"),
        )
    if text.startswith("\ufeff"):
        refuse("it begins with a byte order mark")
    if too_deep(line):
        refuse(f"objects and arrays are nested more than {MAX_DEPTH} deep", text)
    try:
        members, end = scan_object(text, _after_space(text, 0))
    except JSONDecodeError as error:
        refuse(
            f"{error.msg.removesuffix(' at')} at character {error.pos + 1}",
            text[max(0, error.pos - SHOWN // 2) :],
        )
    except Unfit as error:
        refuse(str(error), text)
    end = _after_space(text, end)
    if end != len(text):
        if text[end] == "{":
            refuse("there is more than one object on the line", text[end:])
        refuse("something follows the object", text[end:])
    # Only an escape can encode half of a pair: the bytes are UTF-8.
    if "\\u" in text:
        for member in members:
            if has_lone_surrogate(member.name):
                refuse("a name has half of a surrogate pair", member.name_as_sent)
    if len({member.name for member in members}) < len(members):
        seen = set()
        for member in members:
            if member.name in seen:
                refuse("a name is there twice", member.raw, member.name)
            seen.add(member.name)
    return members


def scan_object(text: str, start: int) -> tuple[list[Member], int]:
    """The members of the object at `start`, and where it ends."""
    if text[start : start + 1] != "{":
        raise JSONDecodeError("No object begins", text, start)
    members: list[Member] = []
    position = _after_space(text, start + 1)
    if text[position : position + 1] == "}":
        return members, position + 1
    while True:
        if text[position : position + 1] != '"':
            raise JSONDecodeError("A name in quotation marks is missing", text, position)
        name, end_of_name = _scan_string(text, position + 1, True)
        if not (colon := _COLON.match(text, end_of_name)):
            raise JSONDecodeError("A colon is missing", text, _after_space(text, end_of_name))
        begin = colon.end()
        try:
            value, end = _scan_value(text, begin)
        except StopIteration as nothing:
            raise JSONDecodeError("No JSON value begins", text, nothing.value) from None
        members.append(Member(name, text[position:end_of_name], value, text[begin:end]))
        if comma := _COMMA.match(text, end):
            position = comma.end()
            continue
        end = _after_space(text, end)
        if text[end : end + 1] != "}":
            raise JSONDecodeError("A comma or a closing brace is missing", text, end)
        return members, end + 1


def too_deep(line: bytes) -> bool:
    """Checked before any recursive parser runs."""
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(line):
        match line[found.start()]:
            case 0x5B | 0x7B:
                depth += 1
                if depth > MAX_DEPTH:
                    return True
            case 0x5D | 0x7D:
                depth -= 1
    return False


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _refuse_constant(name: str) -> NoReturn:
    raise Unfit(f"{name} is no JSON value")


_scan_string = decoder.scanstring  # type: ignore[attr-defined]
# Floats, because Python refuses integers of more than 4300 digits with an error of its own.
_scan_value = JSONDecoder(parse_int=float, parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]
