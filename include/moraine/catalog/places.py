"""Where Moraine may delete: below what the operator or the catalog allows.

The writers of a table set its location and its write paths, so these only narrow what is allowed.
What is allowed is in `catalogs.NAME.allowed-locations`, or else the warehouse that the catalog
reports.
"""

from __future__ import annotations

from collections.abc import Mapping

from moraine.errors import FinalError
from moraine.settings import CatalogSettings
from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import Roots, parse_location

# Polaris reports the first, Iceberg's own servers the second.
_REPORTED = ("default-base-location", "warehouse")
_WRITE_PATHS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


class LocationNotAllowed(FinalError):
    """The table lies where Moraine may not delete; nothing was deleted."""

    code = "LOCATION_NOT_ALLOWED"
    http_status = 409


def allowed_places(name: str, settings: CatalogSettings, reported: Mapping[str, str]) -> Roots:
    """The folders below which Moraine may delete. `reported` is the catalog's configuration."""
    if settings.allowed_locations:
        return Roots.of(settings.allowed_locations)
    found = [value for key in _REPORTED if _is_folder(value := reported.get(key, ""))]
    if not found:
        raise LocationNotAllowed(
            f"The catalog {name!r} reports no warehouse folder in an object store, so it is "
            "unknown where Moraine may delete; nothing was deleted. "
            f"List its folders in catalogs.{name}.allowed-locations."
        )
    return Roots.of(found)


def own_places(
    location: str, properties: Mapping[str, str], metadata_location: str, allowed: Roots
) -> Roots:
    """The folders of a table in which Moraine may delete.

    They include its write paths that are allowed; a file in any other is outside the table.
    """
    if not is_allowed(location, metadata_location, allowed):
        raise LocationNotAllowed(
            f"The table's location {location} is not a folder below the locations that are allowed "
            f"for its catalog ({', '.join(allowed.listed)}), or is in another store than its "
            "metadata; nothing was deleted."
        )
    paths = claimed_paths(properties)
    roots = Roots.of([location, *(p for p in paths if is_allowed(p, metadata_location, allowed))])
    return roots.fixed()


def claimed_paths(properties: Mapping[str, str]) -> list[str]:
    """Every folder besides its location that a table writes files to, by its own properties."""
    return [str(path) for name in _WRITE_PATHS if (path := properties.get(name))]


def is_allowed(folder: str, metadata_location: str, allowed: Roots) -> bool:
    """Whether a folder is strictly below an allowed one, in the store of the table's metadata."""
    folder = folder.rstrip("/")
    try:
        place, metadata = parse_location(folder), parse_location(metadata_location)
    except UnsupportedStorage:
        return False
    same_store = (place.scheme, place.bucket) == (metadata.scheme, metadata.bucket)
    # Also a file in it: on a disk, the folder itself may be a symlink that leads elsewhere.
    return same_store and allowed.contains(folder) and allowed.contains(f"{folder}/file")


def _is_folder(text: str) -> bool:
    """Whether what a catalog reports is a folder of an object store. A disk or a whole bucket needs
    the operator to allow it."""
    try:
        place = parse_location(text)
    except UnsupportedStorage:
        return False
    return place.scheme != "file" and bool(place.key.strip("/"))
