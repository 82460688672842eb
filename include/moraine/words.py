"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`; for other plurals, `counted(n, "key is", "keys are")`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
