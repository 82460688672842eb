"""The OTLP door for logs, and its errors as OTLP has them. An acknowledged record is on disk."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from moraine.access.model import Caller, Principal
from moraine.errors import MoraineError
from moraine.ingest.model import Arrival
from moraine.ingest.otlp.records import Rejects, to_rows
from moraine.ingest.service import IngestService
from moraine.log import get_logger

log = get_logger(__name__)

TABLE = "otel_logs"

Authorize = Callable[[Caller], Awaitable[Principal]]
"""Who the caller is. Raises Unauthorized or Forbidden."""


class OtlpDoor:
    def __init__(self, service: IngestService, database: str, table: str = TABLE) -> None:
        self._service = service
        self._database = database
        self._table = table

    async def export(
        self,
        principal: Principal,
        request: ExportLogsServiceRequest,
        rejects: Rejects | None = None,
    ) -> ExportLogsServiceResponse:
        """`rejects` are records of the same request that could not be decoded."""
        # In a thread: thousands of records would block the event loop for too long.
        rows = await asyncio.to_thread(to_rows, request, rejects)
        if rows.count:
            arrival = Arrival.of(
                principal,
                rows.key(),
                "otlp",
                self._database,
                self._table,
                auto_create=True,
                schema_evolve=False,
            )
            await self._service.take(arrival, rows.body)
        return _response(rows.rejects)


def _response(rejects: Rejects) -> ExportLogsServiceResponse:
    if not rejects.count:
        return ExportLogsServiceResponse()
    return ExportLogsServiceResponse(
        partial_success=ExportLogsPartialSuccess(
            rejected_log_records=rejects.count, error_message=rejects.message
        )
    )


# Errors that may pass. An exporter gets 503 for each: only 503 goes with Retry-After.
_RETRYABLE = frozenset({429, 502, 503, 504})
_CODES = {
    400: code_pb2.INVALID_ARGUMENT,
    401: code_pb2.UNAUTHENTICATED,
    403: code_pb2.PERMISSION_DENIED,
    404: code_pb2.NOT_FOUND,
    408: code_pb2.DEADLINE_EXCEEDED,
    413: code_pb2.RESOURCE_EXHAUSTED,
    415: code_pb2.INVALID_ARGUMENT,
}
_RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OtlpFailure:
    http_status: int
    code: int
    """A code of google.rpc, which gRPC shares."""
    message: str
    retry_after: float | None = None

    def retry_info(self) -> RetryInfo | None:
        if self.retry_after is None:
            return None
        fraction, seconds = math.modf(self.retry_after)
        return RetryInfo(retry_delay=Duration(seconds=int(seconds), nanos=int(fraction * 1e9)))

    def status(self) -> Status:
        status = Status(code=self.code, message=self.message)
        if info := self.retry_info():
            status.details.add().Pack(info)
        return status


OTHER_SIGNAL = OtlpFailure(
    501, code_pb2.UNIMPLEMENTED, "Moraine accepts logs, no traces and no metrics."
)


def failure_of(error: Exception) -> OtlpFailure:
    """Tells an exporter whether to retry, and when. Internal errors reveal nothing."""
    if isinstance(error, MoraineError):
        if error.http_status in _RETRYABLE:
            seconds = error.retry_after or _RETRY_AFTER_SECONDS
            return OtlpFailure(503, code_pb2.UNAVAILABLE, str(error), float(seconds))
        if error.http_status in _CODES:
            return OtlpFailure(error.http_status, _CODES[error.http_status], str(error))
    # The frames, but no message and no variables: they may contain tokens and bodies.
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("otlp.unexpected", error=type(error).__name__, frames=frames)
    return OtlpFailure(500, code_pb2.INTERNAL, "An unexpected error; the service's log has it.")
