"""What must not be purged. Every check is made before the first delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moraine.catalog.client import LoadedTable
from moraine.catalog.siblings import SiblingCheck
from moraine.errors import LocationShared, PathOutsideTable, PurgeForbidden, TableChanged
from moraine.operations.purge.payload import PurgeParameters

# Where catalogs that know such an id may tell it.
_ENTITY_ID_KEYS = ("polaris.table-entity-id", "table-entity-id", "entity-id")


def check_purge_allowed(table: LoadedTable) -> None:
    if str(table.properties.get("gc.enabled", "true")).lower() == "false":
        raise PurgeForbidden(
            "The table has gc.enabled=false: its files may be shared with other tables. "
            "Set it to true if they are not."
        )


def check_identity(asked: PurgeParameters, table: LoadedTable) -> dict[str, str]:
    """The catalog's table is the one the caller meant. Says which checks could not be made."""
    entity_id = entity_id_of(table)
    wanted_id = asked.table_identity.table_entity_id
    expected: list[tuple[str, str | None, str]] = [
        ("metadata_location", asked.metadata_location, table.metadata_location),
    ]
    if asked.metadata is not None:
        expected.append(("table-uuid", asked.metadata.table_uuid, table.uuid))
        expected.append(("location", asked.metadata.location, table.location))
    if entity_id is not None:
        expected.append(("table_entity_id", wanted_id, entity_id))
    for what, wanted, found in expected:
        if wanted is not None and wanted.rstrip("/") != found.rstrip("/"):
            raise TableChanged(
                f"The task names {what} {wanted}, but the catalog says {found}; "
                "nothing was deleted."
            )
    if wanted_id is not None and entity_id is None:
        return {"table_entity_id": "not checked: the catalog does not tell it"}
    return {}


def entity_id_of(table: LoadedTable) -> str | None:
    for key in _ENTITY_ID_KEYS:
        if value := table.config.get(key) or table.properties.get(key):
            return str(value)
    return None


def check_unchanged(pinned: Mapping[str, Any], table: LoadedTable) -> None:
    """The table is still the one that was pinned when the task was acquired."""
    for what, found in (("uuid", table.uuid), ("metadata_location", table.metadata_location)):
        if pinned[what] != found:
            raise TableChanged(
                f"The table changed while the purge was prepared: its {what} was "
                f"{pinned[what]} and is now {found}. Submit the purge anew if it is still wanted."
            )


def refuse_overlap(check: SiblingCheck) -> None:
    """Where two tables share a place, nobody can tell whose a file is."""
    if check.overlapping:
        name, location = check.overlapping[0]
        raise LocationShared(
            f"The table shares its location with {len(check.overlapping)} other tables, the first "
            f"is {name} at {location}; nothing was deleted.",
            details="\n".join(f"{name}: {location}" for name, location in check.overlapping),
        )


def refuse_outsiders(paths: Sequence[str], total: int) -> None:
    raise PathOutsideTable(
        f"{total} files lie outside the table's locations, the first at {paths[0]}; "
        "nothing was deleted. Set purge.outside-files to skip to leave them and purge the rest.",
        details="\n".join(paths),
        report=name_paths("outside", paths, total),
    )


def name_paths(what: str, paths: Sequence[str], total: int) -> dict[str, Any]:
    """The first paths and how many there are, for a task's result."""
    return {what: {"files": total, "paths": list(paths)}}
