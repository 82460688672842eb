"""A client for Iceberg REST catalogs that people use in their scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moraine.catalog.client import DELEGATION, LoadedTable, Snapshots
from moraine.catalog.endpoints import Endpoint
from moraine.catalog.errors import CommitStateUnknown, NoSuchNamespace, NoSuchTable, OutcomeUnknown
from moraine.catalog.keyed import Json, KeyedCatalog
from moraine.errors import MoraineError

Namespace = str | Sequence[str]
"""The levels of its name; a text is a name of one level."""


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view as the catalog has it."""

    metadata_location: str
    metadata: Json = field(repr=False)

    @property
    def uuid(self) -> str:
        return str(self.metadata.get("view-uuid") or "")

    @classmethod
    def from_json(cls, body: Json) -> LoadedView:
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            raise ValueError("a view without its metadata")
        return cls(str(body.get("metadata-location") or ""), metadata)


@dataclass(frozen=True, slots=True)
class PropertiesChange:
    """Names of properties, by what became of them."""

    updated: tuple[str, ...]
    removed: tuple[str, ...]
    missing: tuple[str, ...]


class IcebergCatalog(KeyedCatalog):
    """One catalog. Its mutations have keys and are repeated, if the catalog honours them.

    Each takes an `idempotency_key`, for a caller who wants to repeat it in another process; it
    must be a new one for every operation. Errors are those of `moraine.catalog.errors`. Threads
    may share a client.
    """

    # --- Namespaces ---------------------------------------------------------------------------

    def list_namespaces(self, parent: Namespace = ()) -> list[tuple[str, ...]]:
        """Those right below `parent`, or below the catalog itself."""
        return list(self._namespaces_in(_levels(parent)))

    def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        """Its properties."""
        body = self._ask(Endpoint.LOAD_NAMESPACE, namespace=_levels(namespace))
        return dict(body.get("properties") or {})

    def create_namespace(
        self,
        namespace: Namespace,
        properties: Mapping[str, str] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> dict[str, str]:
        """Its properties, to which the catalog may have added some."""
        payload = {"namespace": _levels(namespace), "properties": dict(properties or {})}
        body = self._change(Endpoint.CREATE_NAMESPACE, payload, idempotency_key)
        return dict(body.get("properties") or {})

    def update_namespace_properties(
        self,
        namespace: Namespace,
        updates: Mapping[str, str] | None = None,
        removals: Iterable[str] = (),
        *,
        idempotency_key: str | None = None,
    ) -> PropertiesChange:
        payload = {"updates": dict(updates or {}), "removals": list(removals)}
        body = self._change(
            Endpoint.UPDATE_NAMESPACE, payload, idempotency_key, namespace=_levels(namespace)
        )
        updated, removed, missing = (
            tuple(body.get(name) or ()) for name in ("updated", "removed", "missing")
        )
        return PropertiesChange(updated, removed, missing)

    def drop_namespace(self, namespace: Namespace, *, idempotency_key: str | None = None) -> None:
        names = {"namespace": _levels(namespace)}
        self._change(Endpoint.DROP_NAMESPACE, None, idempotency_key, **names)

    # --- Tables -------------------------------------------------------------------------------

    def list_tables(self, namespace: Namespace) -> list[str]:
        return list(self._tables_in(_levels(namespace)))

    def load_table(
        self,
        namespace: Namespace,
        table: str,
        *,
        vend: bool = False,
        snapshots: Snapshots = "all",
    ) -> LoadedTable:
        """With credentials for its files if `vend` and the catalog gives any."""
        body = self._ask(
            Endpoint.LOAD_TABLE,
            namespace=_levels(namespace),
            name=table,
            params={"snapshots": snapshots},
            headers=DELEGATION if vend else {},
        )
        return self._read_as(LoadedTable.from_json, Endpoint.LOAD_TABLE, body)

    def table_exists(self, namespace: Namespace, table: str) -> bool:
        try:
            if self.supports(Endpoint.TABLE_EXISTS):
                self._ask(Endpoint.TABLE_EXISTS, namespace=_levels(namespace), name=table)
            else:
                self.load_table(namespace, table, snapshots="refs")
        except (NoSuchTable, NoSuchNamespace):
            return False
        return True

    def create_table(
        self,
        namespace: Namespace,
        name: str,
        schema: Json,
        *,
        location: str | None = None,
        partition_spec: Json | None = None,
        write_order: Json | None = None,
        properties: Mapping[str, str] | None = None,
        stage_create: bool = False,
        idempotency_key: str | None = None,
    ) -> LoadedTable:
        """A staged table exists, and has a metadata file, only once it has been committed to."""
        payload = {
            "name": name,
            "schema": schema,
            "location": location,
            "partition-spec": partition_spec,
            "write-order": write_order,
            "properties": dict(properties or {}),
            "stage-create": stage_create,
        }
        levels = _levels(namespace)
        body = self._change(Endpoint.CREATE_TABLE, payload, idempotency_key, namespace=levels)
        return self._read_as(LoadedTable.from_json, Endpoint.CREATE_TABLE, body)

    def register_table(
        self,
        namespace: Namespace,
        name: str,
        metadata_location: str,
        *,
        overwrite: bool = False,
        idempotency_key: str | None = None,
    ) -> LoadedTable:
        payload = {"name": name, "metadata-location": metadata_location, "overwrite": overwrite}
        levels = _levels(namespace)
        body = self._change(Endpoint.REGISTER_TABLE, payload, idempotency_key, namespace=levels)
        return self._read_as(LoadedTable.from_json, Endpoint.REGISTER_TABLE, body)

    def commit_table(
        self,
        namespace: Namespace,
        table: str,
        requirements: Sequence[Json],
        updates: Sequence[Json],
        *,
        idempotency_key: str | None = None,
        deconflict: bool = False,
    ) -> LoadedTable:
        """The table as the commit left it.

        If the outcome is unknown, `deconflict` looks for the commit's snapshots in the table;
        where they are, it succeeded.
        """
        levels = _levels(namespace)
        payload = {
            "identifier": _identifier(levels, table),
            "requirements": list(requirements),
            "updates": list(updates),
        }
        try:
            body = self._change(
                Endpoint.COMMIT_TABLE, payload, idempotency_key, namespace=levels, name=table
            )
            return self._read_as(LoadedTable.from_json, Endpoint.COMMIT_TABLE, body)
        except OutcomeUnknown as unknown:
            if not deconflict:
                raise
            return self._look_for_commit(levels, table, updates, unknown)

    def commit_transaction(
        self, table_changes: Sequence[Json], *, idempotency_key: str | None = None
    ) -> None:
        """Commit to several tables or to none. Each change has `identifier` (`namespace`, `name`),
        `requirements` and `updates`."""
        payload = {"table-changes": list(table_changes)}
        self._change(Endpoint.COMMIT_TRANSACTION, payload, idempotency_key)

    def rename_table(
        self,
        source: tuple[Namespace, str],
        destination: tuple[Namespace, str],
        *,
        idempotency_key: str | None = None,
    ) -> None:
        """Both are a namespace and a name."""
        self._rename(Endpoint.RENAME_TABLE, source, destination, idempotency_key)

    def drop_table(
        self,
        namespace: Namespace,
        table: str,
        *,
        purge: bool = False,
        idempotency_key: str | None = None,
    ) -> None:
        """`purge` asks the catalog to delete the table's files as well."""
        self._change(
            Endpoint.DROP_TABLE,
            None,
            idempotency_key,
            namespace=_levels(namespace),
            name=table,
            params={"purgeRequested": str(purge).lower()},
        )

    # --- Views --------------------------------------------------------------------------------

    def load_view(self, namespace: Namespace, view: str) -> LoadedView:
        body = self._ask(Endpoint.LOAD_VIEW, namespace=_levels(namespace), name=view)
        return self._read_as(LoadedView.from_json, Endpoint.LOAD_VIEW, body)

    def create_view(
        self,
        namespace: Namespace,
        name: str,
        schema: Json,
        view_version: Json,
        *,
        location: str | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> LoadedView:
        payload = {
            "name": name,
            "schema": schema,
            "view-version": view_version,
            "location": location,
            "properties": dict(properties or {}),
        }
        levels = _levels(namespace)
        body = self._change(Endpoint.CREATE_VIEW, payload, idempotency_key, namespace=levels)
        return self._read_as(LoadedView.from_json, Endpoint.CREATE_VIEW, body)

    def replace_view(
        self,
        namespace: Namespace,
        view: str,
        requirements: Sequence[Json],
        updates: Sequence[Json],
        *,
        idempotency_key: str | None = None,
    ) -> LoadedView:
        levels = _levels(namespace)
        payload = {
            "identifier": _identifier(levels, view),
            "requirements": list(requirements),
            "updates": list(updates),
        }
        body = self._change(
            Endpoint.REPLACE_VIEW, payload, idempotency_key, namespace=levels, name=view
        )
        return self._read_as(LoadedView.from_json, Endpoint.REPLACE_VIEW, body)

    def rename_view(
        self,
        source: tuple[Namespace, str],
        destination: tuple[Namespace, str],
        *,
        idempotency_key: str | None = None,
    ) -> None:
        self._rename(Endpoint.RENAME_VIEW, source, destination, idempotency_key)

    def drop_view(
        self, namespace: Namespace, view: str, *, idempotency_key: str | None = None
    ) -> None:
        names: dict[str, Any] = {"namespace": _levels(namespace), "name": view}
        self._change(Endpoint.DROP_VIEW, None, idempotency_key, **names)

    def _rename(
        self,
        endpoint: Endpoint,
        source: tuple[Namespace, str],
        destination: tuple[Namespace, str],
        key: str | None,
    ) -> None:
        payload = {"source": _identifier(*source), "destination": _identifier(*destination)}
        self._change(endpoint, payload, key)

    def _look_for_commit(
        self, namespace: Namespace, table: str, updates: Sequence[Json], unknown: OutcomeUnknown
    ) -> LoadedTable:
        wanted = snapshot_ids(updates)
        looked_for = f"the snapshots {', '.join(map(str, sorted(wanted)))} of the commit"
        if not wanted:
            raise _still(unknown, "The commit adds no snapshot that could be looked for.")
        try:
            loaded = self.load_table(namespace, table)
        except MoraineError as error:
            raise _still(unknown, f"To look for {looked_for} failed: {error}") from error
        if wanted <= {one.get("snapshot-id") for one in loaded.metadata.get("snapshots") or ()}:
            return loaded
        raise _still(unknown, f"Looked for {looked_for}: the table does not have them, or not yet.")


def snapshot_ids(updates: Iterable[Json]) -> set[int]:
    """Of the snapshots that a commit with these updates adds."""
    added = (update.get("snapshot") for update in updates if update.get("action") == "add-snapshot")
    return {int(snapshot["snapshot-id"]) for snapshot in added if snapshot}


def _still(unknown: OutcomeUnknown, note: str) -> CommitStateUnknown:
    return CommitStateUnknown(f"{unknown} {note}", status=unknown.status, key=unknown.key)


def _levels(namespace: Namespace) -> tuple[str, ...]:
    return (namespace,) if isinstance(namespace, str) else tuple(namespace)


def _identifier(namespace: Namespace, name: str) -> dict[str, Any]:
    return {"namespace": _levels(namespace), "name": name}
