"""One JSON object, read strictly, with the text of each of its values as it was sent.

This is the authority on what a line says; whatever is faster must agree with it or leave the line
to it.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder, decoder
from typing import Any, NamedTuple, NoReturn

from moraine.ingest.coercion.rejection import SHOWN, LineRejected, Unfit

DEEPEST = 200
"""How deep objects and arrays may be nested, the line's own object included."""
WHITESPACE = b" \t\r\n"
ONE_OBJECT = "one JSON object"

_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Possessive, so that a quotation mark that is never closed costs no second look.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class Member(NamedTuple):
    name: str
    name_as_sent: str
    value: Any
    """All numbers are floats here; `raw` has the number."""
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
        refuse(f"objects and arrays are nested more than {DEEPEST} deep", text)
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
    # Only an escape can stand for half of a pair: the bytes are UTF-8.
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
    """The members of the object that starts there, and where it ends."""
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
    """Asked before anything that calls itself for each level."""
    if line.count(b"{") + line.count(b"[") <= DEEPEST:
        return False
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(line):
        match line[found.start()]:
            case 0x5B | 0x7B:
                depth += 1
                if depth > DEEPEST:
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
