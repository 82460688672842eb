"""PyIceberg's catalog with keys, retries and, if wanted, deconfliction.

catalog = connect("https://catalog.example.com/api", warehouse="prod", token=token)
catalog.load_table("shop.orders").append(rows)
"""

from __future__ import annotations

from typing import Any

import requests
from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitStateUnknownException, RESTError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from moraine.client.adapter import IdempotentAdapter
from moraine.client.errors import CatalogError, OutcomeUnknown
from moraine.client.retries import Judgement, Outcome, is_loss, judge_mutation

Timeout = float | tuple[float, float]

_TIMEOUT: Timeout = (5, 60)


def connect(
    uri: str,
    *,
    name: str = "default",
    deconflict: bool = False,
    timeout: Timeout = _TIMEOUT,
    adapter: IdempotentAdapter | None = None,
    **properties: Any,
) -> RestCatalog:
    """A catalog of PyIceberg that retries what is safe to retry.

    `deconflict` is for catalogs without keys: see `DeconflictingCatalog`. `timeout` is for each
    request, in seconds. `adapter` replaces the one that `timeout` and the warehouse make.
    `properties` are PyIceberg's, such as `warehouse`, `token` or `credential`.
    """
    kind = DeconflictingCatalog if deconflict else RestCatalog
    catalog = kind(name, uri=uri, **properties)
    if adapter is None:
        warehouse = str(properties.get("warehouse") or "")
        adapter = IdempotentAdapter(uri=catalog.uri, warehouse=warehouse, timeout=timeout)
    # PyIceberg has no public way to its session. The uri may be another than the caller's: the
    # catalog's configuration decides.
    catalog._session.mount(f"{catalog.uri.rstrip('/')}/", adapter)
    return catalog


class DeconflictingCatalog(RestCatalog):
    """Looks in the table for a commit whose outcome is unknown.

    If the snapshots of the commit are there, it succeeded. If they are not, the outcome is still
    unknown, because the catalog may still be at work: CommitStateUnknownException says what was
    looked for.
    """

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        try:
            response: CommitTableResponse = super().commit_table(table, requirements, updates)
            return response
        except (requests.RequestException, RESTError, ValidationError) as error:
            if not _is_unknown(error):
                raise
            added = [update for update in updates if isinstance(update, AddSnapshotUpdate)]
            return self._find_commit(table, {one.snapshot.snapshot_id for one in added}, error)

    def _find_commit(
        self, table: Table, wanted: set[int], unknown: Exception
    ) -> CommitTableResponse:
        if not wanted:
            raise _still(unknown, "The commit adds no snapshot to look for.") from unknown
        looked_for = f"the snapshots {', '.join(map(str, sorted(wanted)))} of the commit"
        try:
            found = self.load_table(table.name())
        except Exception as error:
            note = f"Loading the table to look for {looked_for} failed: {error}"
            raise _still(unknown, note) from error
        if wanted <= {snapshot.snapshot_id for snapshot in found.metadata.snapshots}:
            return CommitTableResponse(
                metadata=found.metadata, metadata_location=found.metadata_location
            )
        note = f"Looked for {looked_for}: the table does not have them, or not yet."
        raise _still(unknown, note) from unknown


def _is_unknown(error: Exception) -> bool:
    """Whether the catalog may have carried out the request that ended with this error."""
    if isinstance(error, CatalogError):
        return isinstance(error, OutcomeUnknown)
    if isinstance(error, ValidationError):  # a success that cannot be read
        return True
    if isinstance(error, requests.RequestException):
        return is_loss(error) and judge_mutation(Outcome(error=error)) is Judgement.UNKNOWN
    cause = error.__cause__
    response = cause.response if isinstance(cause, requests.HTTPError) else None
    return response is not None and judge_mutation(Outcome(response)) is Judgement.UNKNOWN


def _still(unknown: Exception, note: str) -> CommitStateUnknownException:
    return CommitStateUnknownException(f"{unknown} {note}")
