"""The door for logs in OTLP: an acknowledged record is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from moraine.ingest.model import Arrival
from moraine.ingest.otlp.records import MAX_ROWS_BYTES, Rejects, Rows, to_rows

TABLE = "otel_logs"

Authorize = Callable[[str | None], Awaitable[None]]
"""Judges a bearer token, or None if there is none. Raises Unauthorized or Forbidden."""


class Taker(Protocol):
    """The part of the intake that a door needs."""

    async def take(self, arrival: Arrival, body: bytes) -> object: ...


class OtlpDoor:
    def __init__(
        self,
        intake: Taker,
        database: str,
        table: str = TABLE,
        *,
        max_rows_bytes: int = MAX_ROWS_BYTES,
        count: Callable[[Rows], None] = lambda _rows: None,
    ) -> None:
        """`count` is told of each request after it was taken, for metrics."""
        self._intake = intake
        self._database = database
        self._table = table
        self._max_rows_bytes = max_rows_bytes
        self._count = count

    async def export(
        self, request: ExportLogsServiceRequest, rejects: Rejects | None = None
    ) -> ExportLogsServiceResponse:
        """`rejects` are records of the same request that could not even be read."""
        # In a thread: thousands of records take longer than others should wait for the loop.
        rows = await asyncio.to_thread(to_rows, request, rejects, self._max_rows_bytes)
        if rows.count:
            arrival = Arrival(
                rows.key(),
                "otlp",
                self._database,
                self._table,
                auto_create=True,
                schema_evolve=False,
            )
            await self._intake.take(arrival, rows.body)
        self._count(rows)
        return _response(rows.rejects)


def _response(rejects: Rejects) -> ExportLogsServiceResponse:
    if not rejects.count:
        return ExportLogsServiceResponse()
    return ExportLogsServiceResponse(
        partial_success=ExportLogsPartialSuccess(
            rejected_log_records=rejects.count, error_message=rejects.message
        )
    )


def bearer_token(header: str | None) -> str | None:
    """The token in an Authorization header, if there is one of that kind."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
