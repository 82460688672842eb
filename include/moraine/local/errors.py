from __future__ import annotations

from moraine.errors import MoraineError


class StackError(MoraineError):
    """The embedded stack could not do that."""

    code = "STACK_ERROR"

    def __init__(self, message: str | None = None, *, details: str | None = None) -> None:
        super().__init__(message, details=details)
        if details:
            self.add_note(details)  # where nobody prints the details, a traceback shows them
