"""What databases and tables may be called."""

from __future__ import annotations

import re

from moraine.ingest.errors import InvalidName

_NAME = re.compile(r"[^\x00-\x1f\x7f/\\\s.][^\x00-\x1f\x7f/\\.]{0,254}")


def check_names(database: str, table: str) -> None:
    """Dots part the levels of a database; a table's name has none."""
    for what, names in (("database", database.split(".")), ("table", [table])):
        if not all(map(_NAME.fullmatch, names)):
            raise InvalidName(
                f"That is no name of a {what}: 1 to 255 characters, none of them a slash, a dot "
                "or a control character."
            )
