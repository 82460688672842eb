"""Why other tables of a catalog keep a purge from deleting."""

from __future__ import annotations

from moraine.errors import FinalError


class LocationShared(FinalError, code="LOCATION_SHARED", http_status=409):
    """Another table names or contains some of these files; nothing was deleted."""


class NeighboursUnknown(FinalError, code="NEIGHBOURS_UNKNOWN", http_status=409):
    """Another table of the catalog could not be looked at; nothing was deleted."""
