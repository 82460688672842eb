"""Decodes requests of exporters: protobuf, or OTLP's own JSON.

One text that is not UTF-8 makes the whole protobuf request unreadable. Then each record is decoded
alone: to a message without fields of its own every field is an unknown one, and a message in it is
plain bytes. So a request can be read down to the records and no further.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs

from moraine.errors import BadRequest
from moraine.ingest.otlp.records import Rejects, place

_MAX_REASON = 300
_LENGTH_DELIMITED = 2


@dataclass(frozen=True, slots=True)
class Decoded:
    request: ExportLogsServiceRequest
    rejects: Rejects = field(default_factory=Rejects)
    """Records that could not be decoded, while others could."""


def decode_protobuf(body: bytes) -> Decoded:
    try:
        return Decoded(ExportLogsServiceRequest.FromString(body))
    except DecodeError:
        pass
    try:
        return _decode_one_by_one(body)
    except DecodeError:
        raise BadRequest("The body is not an ExportLogsServiceRequest.") from None


def _decode_one_by_one(body: bytes) -> Decoded:
    request, rejects = ExportLogsServiceRequest(), Rejects()
    for i, resource_logs in enumerate(_fields(body, request.RESOURCE_LOGS_FIELD_NUMBER)):
        readable = request.resource_logs.add()
        resource = _fields(resource_logs, ResourceLogs.RESOURCE_FIELD_NUMBER)
        resource_is_read = _merge(readable.resource, resource)
        for j, scope_logs in enumerate(
            _fields(resource_logs, ResourceLogs.SCOPE_LOGS_FIELD_NUMBER)
        ):
            records = readable.scope_logs.add()
            found = _fields(scope_logs, ScopeLogs.LOG_RECORDS_FIELD_NUMBER)
            scope = _fields(scope_logs, ScopeLogs.SCOPE_FIELD_NUMBER)
            if not (_merge(records.scope, scope) and resource_is_read):
                rejects.add(f"{place(i, j, 0)}: its resource or scope is malformed", len(found))
                continue
            for k, record in enumerate(found):
                if not _merge(records.log_records.add(), [record]):
                    del records.log_records[-1]
                    rejects.add(f"{place(i, j, k)}: it is malformed or has text that is not UTF-8")
    return Decoded(request, rejects)


def _fields(message: bytes, number: int) -> list[bytes]:
    """The content of each field of this number in an encoded message."""
    fields: Any = UnknownFieldSet(Empty.FromString(message))
    wanted = (number, _LENGTH_DELIMITED)
    return [one.data for one in fields if (one.field_number, one.wire_type) == wanted]


def _merge(message: Message, contents: list[bytes]) -> bool:
    try:
        message.MergeFromString(b"".join(contents))
    except DecodeError:
        return False
    return True


def decode_json(body: bytes) -> Decoded:
    """Like protobuf's JSON, but with ids in hex. Unknown fields are ignored."""
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
    """Each log record with its path. The parser refuses what has another form."""
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
        raise BadRequest(f"{path}: write an id in hex, two digits for each byte.") from None


def _cut(error: Exception) -> str:
    reason = str(error)
    return reason if len(reason) <= _MAX_REASON else reason[:_MAX_REASON] + "…"
