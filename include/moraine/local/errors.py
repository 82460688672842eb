from __future__ import annotations

from moraine.errors import MoraineError


class StackError(MoraineError):
    """The embedded stack could not do that."""

    code = "STACK_ERROR"
