"""Fields without a column of their own, kept in the column `props`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moraine.ingest.coercion.json_lines import scan_object
from moraine.ingest.columns import PROPS, Column, Kind


def place_of_props(columns: Sequence[Column]) -> int | None:
    for place, column in enumerate(columns):
        if column.name == PROPS and column.type.kind is Kind.DYNAMIC:
            return place
    return None


def merged(own: bytes | None, strangers: Iterable[tuple[str, str, str]]) -> bytes:
    """The row's own props, then the strangers: each its name, its name as sent and its value.

    Of two members of a name the row's own wins.
    """
    members: list[str] = []
    names: set[str] = set()
    if own is not None:
        text = own.decode()
        if text.startswith("{"):
            found, _ = scan_object(text, 0)
            names = {member.name for member in found}
            # Cut out whole: nothing of what was sent is written anew.
            if inside := text[1:-1].strip(" \t\r\n"):
                members.append(inside)
        else:
            members.append(f'"{PROPS}":{text}')
    members.extend(f"{as_sent}:{value}" for name, as_sent, value in strangers if name not in names)
    return ("{" + ",".join(members) + "}").encode()
