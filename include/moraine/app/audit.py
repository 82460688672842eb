"""The audit log over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from moraine.access.audit import AuditEntry, AuditFilter
from moraine.access.model import Action, Principal
from moraine.http.context import Context, context_of, principal_for
from moraine.http.validation import no_nul
from moraine.tasks.routes import errors

router = APIRouter(prefix="/v1/audit", tags=["Audit API"])

_MAX_PER_PAGE = 500
_EXAMPLE: JsonDict = {
    "id": 42,
    "at": "2026-11-16T10:00:00Z",
    "issuer": "https://id.example.com",
    "subject": "alice",
    "certificate": "CN=alice,O=Example",
    "address": "192.0.2.7",
    "act": "submit",
    "outcome": "allowed",
    "table": "demo.shop.orders",
    "delegation_task_id": "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11",
    "reason": "",
}

Auditor = Annotated[Principal, Depends(principal_for(Action.READ_AUDIT))]
Ctx = Annotated[Context, Depends(context_of)]
Outcome = Literal["allowed", "refused"]


class AuditRecord(BaseModel):
    """A decision: what a caller asked for, and whether it was allowed."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    id: int
    at: datetime
    issuer: str = Field(description="Who vouches for the caller; `unknown` if it was not known")
    subject: str
    certificate: str | None = Field(description="The subject of the caller's certificate")
    address: str
    act: str
    outcome: Outcome
    table: str
    delegation_task_id: UUID | None
    reason: str

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditRecord:
        return cls.model_validate(
            {
                "id": entry.id,
                "at": entry.recorded_at,
                "issuer": entry.issuer,
                "subject": entry.subject,
                "certificate": entry.certificate,
                "address": entry.address,
                "act": entry.act,
                "outcome": entry.outcome,
                "table": entry.object,
                "delegation_task_id": entry.task_id,
                "reason": entry.reason,
            }
        )


class AuditPage(BaseModel):
    """Decisions, newest first. Pass `next_cursor` as `cursor` for the page after this one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"entries": [_EXAMPLE], "next_cursor": 41}]}
    )

    entries: list[AuditRecord]
    next_cursor: int | None


@router.get(
    "",
    operation_id="readAuditLog",
    summary="Who was allowed or refused what, newest first",
    responses=errors(400, 401, 403, 503),
)
async def read_audit_log(
    auditor: Auditor,
    context: Ctx,
    subject: Annotated[str | None, Query(description="The caller's name")] = None,
    act: Annotated[str | None, Query(description="submit, cancel, retry, lift, drop, …")] = None,
    outcome: Annotated[Outcome | None, Query(description="`allowed` or `refused`")] = None,
    table: Annotated[
        str | None, Query(description="The whole name: catalog.namespace.table")
    ] = None,
    task_id: Annotated[UUID | None, Query(description="Only acts on this task")] = None,
    since: Annotated[AwareDatetime | None, Query(description="At this time or later")] = None,
    limit: Annotated[
        int, Query(ge=1, le=_MAX_PER_PAGE, description="How many at most on this page")
    ] = 50,
    cursor: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="`next_cursor` of the page before")
    ] = None,
) -> AuditPage:
    wanted = AuditFilter(
        subject=no_nul("subject", subject),
        act=no_nul("act", act),
        outcome=outcome,
        object=no_nul("table", table),
        task_id=task_id,
        since=since,
    )
    found = await context.in_thread(
        context.guard.audit.find, auditor.realm, wanted, limit=limit + 1, before=cursor
    )
    page = found[:limit]
    return AuditPage(
        entries=[AuditRecord.of(entry) for entry in page],
        next_cursor=page[-1].id if len(found) > limit else None,
    )
