"""Tables that are being dropped, over HTTP, for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from moraine.access.model import Action
from moraine.drops.hiding import HiddenTables
from moraine.drops.tombstones import NoTombstone, Tombstone
from moraine.http.context import context_of
from moraine.tasks.routes import Reader, Steerer, TaskContext, errors

router = APIRouter(prefix="/v1/tombstones", tags=["Dropped Tables API"])

_EXAMPLE: JsonDict = {
    "catalog_name": "demo",
    "namespace_levels": ["shop"],
    "table_name": "orders",
    "delegation_task_id": "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11",
    "hidden_since": "2026-11-16T10:00:00Z",
    "requested_by": "https://id.example.com alice",
}


class DropContext(TaskContext, Protocol):
    @property
    def hidden(self) -> HiddenTables: ...


Ctx = Annotated[DropContext, Depends(context_of)]


class TombstoneRecord(BaseModel):
    """A table that the gateway hides because it is being purged and dropped."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    catalog_name: str
    namespace_levels: list[str]
    table_name: str
    delegation_task_id: UUID
    hidden_since: datetime
    requested_by: str = Field(description="Issuer and name of the caller who dropped the table")

    @classmethod
    def of(cls, tombstone: Tombstone) -> TombstoneRecord:
        return cls(
            catalog_name=tombstone.catalog_name,
            namespace_levels=tombstone.namespace,
            table_name=tombstone.table_name,
            delegation_task_id=tombstone.task_id,
            hidden_since=tombstone.created_at,
            requested_by=tombstone.principal,
        )


class TombstoneList(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"tombstones": [_EXAMPLE]}]})

    tombstones: list[TombstoneRecord]


@router.get(
    "",
    operation_id="listTombstones",
    summary="List the tables that are being purged and dropped, oldest first",
    responses=errors(401, 403, 503),
)
async def list_tombstones(principal: Reader, context: Ctx) -> TombstoneList:
    found = await context.in_thread(context.hidden.store.all)
    readable = [
        tombstone
        for tombstone in found
        if await context.guard.allows(principal, Action.READ_TASKS, tombstone.table)
    ]
    return TombstoneList(tombstones=[TombstoneRecord.of(tombstone) for tombstone in readable])


@router.post(
    "/{task_id}/lift",
    operation_id="liftTombstone",
    summary="Show a table again whose purge has deleted nothing",
    responses=errors(400, 401, 403, 404, 409, 503),
)
async def lift(principal: Steerer, task_id: UUID, context: Ctx) -> TombstoneRecord:
    """The purge must have ended: cancel it first if it has not. A purge that is restarted
    afterwards ends at once with the code DROP_CALLED_OFF."""
    tombstones = context.hidden
    found = await context.in_thread(tombstones.store.of_task, task_id)
    if found is None or found.realm_id != principal.realm:
        raise NoTombstone()
    await context.guard.authorize(principal, Action.STEER_TASKS, found.table, "lift", task_id)
    lifted = await context.in_thread(tombstones.store.lift, task_id, context.service.store)
    await tombstones.refresh()
    return TombstoneRecord.of(lifted)
