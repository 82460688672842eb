"""The errors that end a purge. The API needs all of them: it finds the HTTP status by the code."""

from __future__ import annotations

from moraine.catalog.places import LocationNotAllowed  # noqa: F401
from moraine.errors import FinalError, TransientError
from moraine.neighbours.errors import LocationShared, NeighboursUnknown  # noqa: F401


class TableChanged(FinalError, code="TABLE_CHANGED", http_status=409):
    """The table is not the one the task was asked to purge; nothing was deleted."""


class PurgeForbidden(FinalError, code="PURGE_FORBIDDEN", http_status=409):
    """The table's own settings forbid a purge; nothing was deleted."""


class PathOutsideTable(FinalError, code="PATH_OUTSIDE_TABLE", http_status=409):
    """The table names files outside its own locations; nothing was deleted."""


class InventoryChanged(FinalError, code="INVENTORY_CHANGED", http_status=409):
    """The list of files to delete is not as it was planned; no file of that part was deleted."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"The part {part} of the task's inventory in the workspace was changed or removed "
            "since it was planned, so no file that it names was deleted. Find out what writes to "
            "the workspace, then submit a new purge."
        )


class FilesRemain(TransientError, code="FILES_REMAIN", http_status=502):
    """Some files are still there after the delete."""
