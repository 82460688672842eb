"""A request for logs with its records still sealed.

On the wire a message inside another looks like bytes, so the same request can be read with other
descriptors: down to the records, and no further.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE = "moraine.otlp"
_FILE = FileDescriptorProto(name="moraine/otlp.proto", package=_PACKAGE, syntax="proto3")


def _message(name: str, **fields: tuple[int, str | None, bool]) -> DescriptorProto:
    """Fields by name: the number, the message in it (or bytes), whether there are many."""
    message = DescriptorProto(name=name)
    for field, (number, inner, repeated) in fields.items():
        message.field.append(
            FieldDescriptorProto(
                name=field,
                number=number,
                type=FieldDescriptorProto.TYPE_MESSAGE
                if inner
                else FieldDescriptorProto.TYPE_BYTES,
                type_name=f".{_PACKAGE}.{inner}" if inner else None,
                label=(
                    FieldDescriptorProto.LABEL_REPEATED
                    if repeated
                    else FieldDescriptorProto.LABEL_OPTIONAL
                ),
            )
        )
    return message


_FILE.message_type.extend(
    [
        _message("Request", resource_logs=(1, "ResourceLogs", True)),
        _message("ResourceLogs", resource=(1, None, False), scope_logs=(2, "ScopeLogs", True)),
        _message("ScopeLogs", scope=(1, None, False), log_records=(2, None, True)),
    ]
)
_POOL = DescriptorPool()
_POOL.Add(_FILE)
_REQUEST = GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.Request"))


def open_envelope(body: bytes) -> Any:
    """Raises DecodeError if not even the envelope can be read."""
    return _REQUEST.FromString(body)
