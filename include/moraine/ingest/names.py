"""What databases and tables may be called."""

from __future__ import annotations

import re

_NAME = re.compile(r"[^\x00-\x1f\x7f/\\\s.][^\x00-\x1f\x7f/\\.]{0,254}")


def is_name(name: str) -> bool:
    """1 to 255 characters, none of them a slash, a dot or a control character."""
    return bool(_NAME.fullmatch(name))
