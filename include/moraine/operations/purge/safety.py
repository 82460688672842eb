"""What must not be purged. Every check is made before the first delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moraine.catalog.client import LoadedTable
from moraine.errors import PathOutsideTable, PurgeForbidden, TableChanged
from moraine.operations.purge.payload import PurgeParameters
from moraine.storage.files import local_path


def check_purge_allowed(table: LoadedTable) -> None:
    if str(table.properties.get("gc.enabled", "true")).lower() == "false":
        raise PurgeForbidden(
            "The table has gc.enabled=false: its files may be shared with other tables. "
            "Set it to true if they are not."
        )


def check_identity(asked: PurgeParameters, table: LoadedTable) -> None:
    """The catalog's table is the one the caller meant."""
    expected: list[tuple[str, str | None, str]] = [
        ("metadata_location", asked.metadata_location, table.metadata_location),
    ]
    if asked.metadata is not None:
        expected.append(("table-uuid", asked.metadata.table_uuid, table.uuid))
    for what, wanted, found in expected:
        if wanted is not None and wanted != found:
            raise TableChanged(
                f"The task names {what} {wanted}, but the catalog says {found}; "
                "nothing was deleted."
            )


def check_unchanged(pinned: Mapping[str, Any], table: LoadedTable) -> None:
    """The table is still the one that was pinned when the task was acquired."""
    for what, found in (("uuid", table.uuid), ("metadata_location", table.metadata_location)):
        if pinned[what] != found:
            raise TableChanged(
                f"The table changed while the purge was prepared: its {what} was "
                f"{pinned[what]} and is now {found}. Submit the purge anew if it is still wanted."
            )


def table_roots(table: LoadedTable) -> list[str]:
    """The folders a table's files may lie in."""
    paths = [table.location]
    paths += [table.properties.get(f"write.{kind}.path", "") for kind in ("data", "metadata")]
    return [local_path(path).rstrip("/") + "/" for path in paths if path]


def refuse_outsiders(paths: Sequence[str], total: int) -> None:
    if paths:
        raise PathOutsideTable(
            f"{total} files lie outside the table's locations, the first at {paths[0]}; "
            "nothing was deleted.",
            details="\n".join(paths),
        )
