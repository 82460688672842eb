"""The audit log: who was allowed or refused what, and when. Retention does not remove it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import ConnectionPool

from moraine.access.model import Principal
from moraine.errors import LedgerUnavailable
from moraine.ledger.queries import Queries, load_queries
from moraine.log import get_logger

log = get_logger(__name__)

_SQL = load_queries("moraine.access", "audit.sql")
ALLOWED, REFUSED = "allowed", "refused"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    recorded_at: datetime
    realm_id: str
    issuer: str
    subject: str
    certificate: str | None
    address: str
    act: str
    """What was asked for: `submit`, `cancel`, `retry`, `lift`, `promote`, `drop`, or an action."""
    outcome: str
    object: str
    """The table, as `catalog.namespace.table`; empty where the act is about none."""
    task_id: UUID | None
    reason: str


@dataclass(frozen=True, slots=True)
class AuditFilter:
    subject: str | None = None
    act: str | None = None
    outcome: str | None = None
    object: str | None = None
    task_id: UUID | None = None
    since: datetime | None = None


class AuditLog:
    """Entries are written before what they allow is done: if that fails, nothing is done."""

    def __init__(self, pool: ConnectionPool[Any], *, patience: timedelta = timedelta(0)) -> None:
        self._queries = Queries(pool, _SQL, patience=patience.total_seconds())

    def add(
        self,
        principal: Principal,
        act: str,
        outcome: str,
        *,
        table: str = "",
        task_id: UUID | None = None,
        reason: str = "",
    ) -> None:
        certificate = principal.certificate
        try:
            self._queries.run(
                "add",
                realm_id=principal.realm,
                issuer=principal.issuer,
                subject=principal.subject,
                certificate=_storable(certificate.subject) if certificate else None,
                address=principal.address,
                act=act,
                outcome=outcome,
                object=_storable(table),
                task_id=task_id,
                reason=_storable(reason),
            )
        except psycopg.Error as error:
            # Such as a role that may not write there. It is not the caller's fault.
            log.error("audit.unwritable", error=type(error).__name__)
            raise LedgerUnavailable(
                "The audit log cannot be written, so nothing is done."
            ) from None

    def find(
        self, realm: str, wanted: AuditFilter, *, limit: int, before: int | None = None
    ) -> list[AuditEntry]:
        return self._queries.run_as(
            AuditEntry,
            "find",
            realm_id=realm,
            before=before,
            limit=limit,
            subject=wanted.subject,
            act=wanted.act,
            outcome=wanted.outcome,
            object=wanted.object,
            task_id=wanted.task_id,
            since=wanted.since,
        ).rows


def _storable(text: str) -> str:
    """Text is a caller's here. What PostgreSQL does not take must not hide a refusal."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
