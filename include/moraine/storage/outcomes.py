"""What became of a file that was to be deleted."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

DELETED: Final = "deleted"
"""It is gone. A bulk request to S3 does not tell whether it was there before."""
MISSING: Final = "missing"
"""There was none: no failure."""
UNSENT: Final = "unsent"
"""Nothing was asked of its store, since that was not permitted any more."""


class Failure(NamedTuple):
    """It is still there, or nobody knows."""

    reason: str
    refused: bool
    """The store said no: asking again does not help."""


Outcome: TypeAlias = Literal["deleted", "missing", "unsent"] | Failure
