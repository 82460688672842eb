"""OTLP's log records translated to rows, and the records that no row can represent."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from moraine.errors import PayloadTooLarge
from moraine.ingest.columns import Column, ColumnKind, ColumnType

COLUMNS = tuple(
    Column(name, ColumnType(kind))
    for name, kind in (
        ("timestamp", ColumnKind.TIMESTAMP),
        ("severity_number", ColumnKind.INT),
        ("severity_text", ColumnKind.STRING),
        ("body", ColumnKind.STRING),
        ("service_name", ColumnKind.STRING),
        ("trace_id", ColumnKind.STRING),
        ("span_id", ColumnKind.STRING),
        ("attributes_json", ColumnKind.DYNAMIC),
    )
)
"""The columns of the table for logs."""

MAX_ROWS_BYTES = 64 * 2**20
_SERVICE_NAME = "service.name"
_LATEST = 2**63 - 1
_TRACE_ID_BYTES = 16
_SPAN_ID_BYTES = 8
_MAX_REASONS = 3


class Unrepresentable(ValueError):
    """A record has a value that no row can represent. The message says which."""


@dataclass(slots=True)
class Rejects:
    """The number of rejected records, and the reasons of the first ones."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, reason: str, records: int = 1) -> None:
        self.count += records
        if records and len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    @property
    def message(self) -> str:
        more = " and others" if self.count > len(self.reasons) else ""
        return "; ".join(self.reasons) + more if self.count else ""


@dataclass(frozen=True, slots=True)
class LogRows:
    body: bytes
    """NDJSON, a line for each record."""
    count: int
    rejects: Rejects
    all_dated: bool
    """Whether every record has a time, so that two different records never have equal rows."""

    def key(self) -> str:
        """The same for an exporter's retry, if the records are distinct from later ones."""
        if not self.all_dated:
            return f"otlp:{uuid.uuid4()}"
        return f"otlp:{hashlib.sha256(self.body).hexdigest()}"


def to_rows(
    request: ExportLogsServiceRequest,
    rejects: Rejects | None = None,
    max_bytes: int = MAX_ROWS_BYTES,
) -> LogRows:
    """The rows of a request. `rejects` has the records that could not be decoded.

    Each row repeats its resource and scope, so a small request can need many bytes.
    """
    lines: list[bytes] = []
    size, all_dated, rejected = 0, True, rejects or Rejects()
    for i, resource_logs in enumerate(request.resource_logs):
        resource = _attributes(resource_logs.resource.attributes)
        service = _service_name(resource_logs.resource.attributes)
        for j, scope_logs in enumerate(resource_logs.scope_logs):
            shared = {**resource, **_attributes(scope_logs.scope.attributes)}
            for k, record in enumerate(scope_logs.log_records):
                try:
                    row = _row(record, service, shared)
                except Unrepresentable as error:
                    rejected.add(f"{place(i, j, k)}: {error}")
                    continue
                line = _json(row).encode()
                size += len(line) + 1
                if size > max_bytes:
                    raise PayloadTooLarge(
                        f"The records need more than {max_bytes} bytes: send fewer at once."
                    )
                all_dated = all_dated and row["timestamp"] is not None
                lines.append(line + b"\n")
    return LogRows(b"".join(lines), len(lines), rejected, all_dated)


def place(resource: int, scope: int, record: int) -> str:
    return f"resource_logs[{resource}].scope_logs[{scope}].log_records[{record}]"


def _row(record: LogRecord, service: str | None, shared: dict[str, Any]) -> dict[str, Any]:
    return {
        "timestamp": _timestamp(record),
        "severity_number": record.severity_number or None,
        "severity_text": record.severity_text or None,
        "body": _text(record.body),
        "service_name": service,
        "trace_id": _id("trace_id", record.trace_id, _TRACE_ID_BYTES),
        "span_id": _id("span_id", record.span_id, _SPAN_ID_BYTES),
        "attributes_json": {**shared, **_attributes(record.attributes)},
    }


def _service_name(resource: Iterable[KeyValue]) -> str | None:
    names = [_text(pair.value) for pair in resource if pair.key == _SERVICE_NAME]
    return names[-1] or None if names else None


def _timestamp(record: LogRecord) -> int | None:
    nanoseconds = record.time_unix_nano or record.observed_time_unix_nano
    if nanoseconds > _LATEST:
        raise Unrepresentable(f"its time, {nanoseconds} ns, is past the year 2262")
    return nanoseconds or None


def _id(name: str, value: bytes, length: int) -> str | None:
    if value and len(value) != length:
        raise Unrepresentable(f"{name} has {len(value)} bytes, not {length}")
    # OTLP writes zeros for "none".
    return value.hex() if any(value) else None


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    """A value as JSON: bytes in base64, NaN and infinities by name."""
    kind = value.WhichOneof("value")
    match kind:
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value":
            number = value.double_value
            return number if math.isfinite(number) else json.dumps(number)
        case "string_value" | "bool_value" | "int_value":
            return getattr(value, kind)
    return None  # no value, or a kind that only profiles use


def _text(value: AnyValue) -> str | None:
    """A string as it is, any other value as its JSON."""
    match value.WhichOneof("value"):
        case None:
            return None
        case "string_value":
            return value.string_value
    return _json(_plain(value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
