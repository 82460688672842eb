"""What goes wrong, as OTLP tells an exporter: whether to send again, and when."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from moraine.errors import MoraineError
from moraine.log import get_logger

log = get_logger(__name__)

# What may pass. An exporter is told 503 for each: that is the one that goes with Retry-After.
_RETRYABLE = frozenset({429, 502, 503, 504})
_CODES = {
    400: code_pb2.INVALID_ARGUMENT,
    401: code_pb2.UNAUTHENTICATED,
    403: code_pb2.PERMISSION_DENIED,
    404: code_pb2.NOT_FOUND,
    413: code_pb2.RESOURCE_EXHAUSTED,
    415: code_pb2.INVALID_ARGUMENT,
}
_RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    http_status: int
    code: int
    """Of google.rpc, which gRPC shares."""
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


OTHER_SIGNAL = Failure(501, code_pb2.UNIMPLEMENTED, "Moraine takes logs, no traces and no metrics.")


def failure_of(error: Exception) -> Failure:
    """Errors that are not the caller's and will not pass tell nothing of the inside."""
    if isinstance(error, MoraineError):
        if error.http_status in _RETRYABLE:
            seconds = getattr(error, "retry_after", None) or _RETRY_AFTER_SECONDS
            return Failure(503, code_pb2.UNAVAILABLE, str(error), float(seconds))
        if error.http_status in _CODES:
            return Failure(error.http_status, _CODES[error.http_status], str(error))
    # Where, but not the message and no variables: tokens and bodies may be in them.
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("otlp.unexpected", error=type(error).__name__, frames=frames)
    return Failure(500, code_pb2.INTERNAL, "An unexpected error; the service's log has it.")
