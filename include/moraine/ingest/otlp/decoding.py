"""Requests as exporters send them: protobuf, or OTLP's own kind of JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from moraine.errors import BadRequest
from moraine.ingest.otlp.envelope import open_envelope
from moraine.ingest.otlp.records import Rejects, place

_CHARACTERS_TOLD = 300


@dataclass(frozen=True, slots=True)
class Decoded:
    request: ExportLogsServiceRequest
    rejects: Rejects = field(default_factory=Rejects)
    """Records that could not be read, where the others could."""


def decode_protobuf(body: bytes) -> Decoded:
    try:
        return Decoded(ExportLogsServiceRequest.FromString(body))
    except DecodeError:
        return _decode_one_by_one(body)


def _decode_one_by_one(body: bytes) -> Decoded:
    """One text that is not UTF-8 makes the whole request unreadable; so read each record alone."""
    try:
        envelope = open_envelope(body)
    except DecodeError:
        raise BadRequest("The body is not an ExportLogsServiceRequest.") from None
    request, rejects = ExportLogsServiceRequest(), Rejects()
    for i, resource_logs in enumerate(envelope.resource_logs):
        readable = request.resource_logs.add()
        resource_is_read = _merge(readable.resource, resource_logs.resource)
        for j, scope_logs in enumerate(resource_logs.scope_logs):
            records = readable.scope_logs.add()
            is_read = _merge(records.scope, scope_logs.scope) and resource_is_read
            if not is_read:
                count = len(scope_logs.log_records)
                rejects.add(f"{place(i, j, 0)}: its resource or scope is malformed", count)
                continue
            for k, record in enumerate(scope_logs.log_records):
                if not _merge(records.log_records.add(), record):
                    del records.log_records[-1]
                    rejects.add(f"{place(i, j, k)}: it is malformed or has text that is not UTF-8")
    return Decoded(request, rejects)


def _merge(message: Any, content: bytes) -> bool:
    try:
        message.MergeFromString(content)
    except DecodeError:
        return False
    return True


def decode_json(body: bytes) -> Decoded:
    """As protobuf's JSON, but ids are hex. Fields that are not known are ignored."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The body is not JSON: {_cut(error)}") from None
    if not isinstance(document, dict):
        raise BadRequest("The body is not a JSON object.")
    for path, record in _records(document):
        for names in (("traceId", "trace_id"), ("spanId", "span_id")):
            for name in names:
                if record.get(name) is not None:
                    record[name] = _base64_of_hex(record[name], f"{path}.{name}")
    try:
        request = ParseDict(document, ExportLogsServiceRequest(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"The body is not an ExportLogsServiceRequest: {_cut(error)}") from None
    return Decoded(request)


def _records(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each log record and where it is. What has another form is left for the parser to refuse."""
    for outer, resource_logs in _objects(document, "", "resourceLogs", "resource_logs"):
        for inner, scope_logs in _objects(resource_logs, f"{outer}.", "scopeLogs", "scope_logs"):
            yield from _objects(scope_logs, f"{inner}.", "logRecords", "log_records")


def _objects(
    parent: dict[str, Any], path: str, *names: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        items = parent.get(name)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield f"{path}{name}[{index}]", item


def _base64_of_hex(value: Any, path: str) -> str:
    try:
        return base64.b64encode(binascii.unhexlify(value)).decode()
    except (ValueError, TypeError):
        raise BadRequest(f"{path}: an id is written in hex, two digits for a byte.") from None


def _cut(error: Exception) -> str:
    words = str(error)
    return words if len(words) <= _CHARACTERS_TOLD else words[:_CHARACTERS_TOLD] + "…"
