"""The REST door: NDJSON in, the committed snapshot out; and the tables that it writes to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from moraine.access.model import Action, Principal
from moraine.http.bodies import read_model
from moraine.http.context import context_of, principal_for
from moraine.http.validation import no_nul
from moraine.ingest.api import IngestContext
from moraine.ingest.columns import Column, ColumnType
from moraine.ingest.decompression import unpacked
from moraine.ingest.errors import (
    BadBody,
    InvalidHeader,
    InvalidIngestKey,
    MissingTable,
    NoSuchKey,
    WrongMediaType,
    refusal_of,
)
from moraine.ingest.model import Arrival, IngestRequest, State, check_names
from moraine.ingest.rest.openapi import LINES, errors, json_body
from moraine.ingest.tables.schemas import Promotion, columns_of
from moraine.ingest.tables.service import IngestTables

_MEDIA_TYPES = {"application/x-ndjson", "application/ndjson", "application/jsonl"}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ack(BaseModel):
    snapshot_id: int = Field(description="The snapshot that has the rows")
    extent_count: int = Field(description="Data files that have rows of this request")
    rows_ingested: int
    bytes_written: int = Field(description="The share of those files that is this request's")
    replayed: bool = Field(description="Whether it was written by an earlier request")


class RequestStatus(BaseModel):
    key: str
    state: State
    door: str
    database: str
    table: str
    failures: int = Field(description="How often writing it failed; it is retried")
    snapshot_id: int | None
    extent_count: int | None
    rows_ingested: int | None
    bytes_written: int | None
    error: dict[str, Any] | None = Field(
        description="Why it was rejected; or, until it is written, why the last attempt failed"
    )
    reserved_at: datetime
    applied_at: datetime | None
    expires_at: datetime | None


class ColumnBody(_Strict):
    name: str
    type: str = Field(description="bool, int, long, real, string, timestamp, dynamic, vector(N)")
    required: bool = False


class NewTable(_Strict):
    database: str
    table: str
    columns: list[ColumnBody]


class TableBody(BaseModel):
    database: str
    table: str
    columns: list[ColumnBody]


class NewPromotion(_Strict):
    field: str = Field(description="The name of the field in the lines")
    type: str
    column: str = Field("", description="By default FIELD_TYPE")


class PromotionBody(BaseModel):
    field: str
    column: str
    type: str
    read_as: str = Field(description="An SQL expression that reads the field from old and new rows")


_Writer = Annotated[Principal, Depends(principal_for(Action.WRITE_INGEST))]


async def _tables(request: Request) -> IngestTables:
    context: IngestContext = context_of(request)
    return context.ingest.tables


router = APIRouter()
_NEW_TABLE = {
    "database": "shop",
    "table": "orders",
    "columns": [
        {"name": "id", "type": "long", "required": True},
        {"name": "at", "type": "timestamp"},
    ],
}
_Context = Annotated[IngestContext, Depends(context_of)]
_Tables = Annotated[IngestTables, Depends(_tables)]


@router.post(
    "/v1/ingest",
    operation_id="ingestLines",
    summary="Write lines to a table",
    tags=["ingest"],
    openapi_extra=LINES,
    responses=errors(400, 404, 409, 413, 415, 422, 429, 502),
)
async def ingest(principal: _Writer, request: Request, context: _Context) -> Ack:
    """Write the lines of the body to a table: all of them exactly once, or none."""
    limits = context.settings.ingest.rest
    context.ingest.require_catalog()
    arrival = _arrival(principal, request, context)
    await _authorize(principal, arrival.database, arrival.table, context)
    _require_ndjson(request)
    context.ingest.rate.take(principal.name)
    encoding = request.headers.get("content-encoding", "")
    body = unpacked(_chunks(request), encoding, limits.max_body_bytes)
    service = context.ingest.service
    receipt = await service.receive(arrival, body)
    settled = await service.outcome(receipt, limits.wait.total_seconds())
    if settled.state is State.REJECTED:
        raise refusal_of(settled.error)
    # A duplicate that arrived while the first was in progress gets the answer of the first.
    replayed = receipt.known is not None and receipt.known.state is State.APPLIED
    if replayed:
        await service.store.count_replay(arrival.door)
    return _ack(settled, replayed=replayed)


@router.get(
    "/v1/requests/{key:path}",
    operation_id="getRequest",
    summary="The state of a request",
    tags=["ingest"],
    responses=errors(404),
)
async def status(
    principal: _Writer,
    key: str,
    context: _Context,
    database: Annotated[str | None, Query(description="The table's database")] = None,
    table: Annotated[
        str | None, Query(description="Its name, where one key was used for several tables")
    ] = None,
) -> RequestStatus:
    """The state of the caller's newest request with this key."""
    if not _KEY.fullmatch(key):
        raise NoSuchKey()
    found = await context.ingest.service.store.find_of(
        principal.name, key, no_nul("database", database), no_nul("table", table)
    )
    if found is None:
        raise NoSuchKey()
    await _authorize(principal, found.database_name, found.table_name, context)
    return RequestStatus(
        key=found.client_key,
        database=found.database_name,
        table=found.table_name,
        **{
            name: getattr(found, name)
            for name in RequestStatus.model_fields
            if name not in ("key", "database", "table")
        },
    )


@router.post(
    "/v1/tables",
    operation_id="createTable",
    summary="Create a table with typed columns",
    status_code=201,
    tags=["tables"],
    openapi_extra=json_body(NewTable, _NEW_TABLE),
    responses=errors(400, 409, 413, 415, 502),
)
async def create_table(
    principal: _Writer, request: Request, context: _Context, tables: _Tables
) -> TableBody:
    """Create a table with typed columns."""
    asked = await read_model(request, NewTable, context.settings.api.max_body_bytes)
    check_names(asked.database, asked.table)
    await _authorize(principal, asked.database, asked.table, context, "create")
    columns = [Column(one.name, ColumnType.parse(one.type), one.required) for one in asked.columns]
    made = await context.in_thread(tables.create, asked.database, asked.table, columns)
    return _table_body(asked.database, asked.table, columns_of(made.schema()))


@router.get(
    "/v1/tables/{database}/{table}",
    operation_id="describeTable",
    summary="A table's columns",
    tags=["tables"],
    responses=errors(404, 502),
)
async def describe_table(
    principal: _Writer, database: str, table: str, context: _Context, tables: _Tables
) -> TableBody:
    """The columns that lines are coerced to."""
    await _authorize(principal, database, table, context)
    found = await context.in_thread(tables.load, database, table)
    return _table_body(database, table, columns_of(found.schema()))


@router.post(
    "/v1/tables/{database}/{table}/promotions",
    operation_id="promoteField",
    summary="Give a field a typed column",
    status_code=201,
    tags=["tables"],
    openapi_extra=json_body(NewPromotion, {"field": "latency_ms", "type": "real"}),
    responses=errors(400, 404, 409, 413, 415, 502),
)
async def promote(
    principal: _Writer,
    database: str,
    table: str,
    request: Request,
    context: _Context,
    tables: _Tables,
) -> PromotionBody:
    """Give a field a typed column from now on."""
    asked = await read_model(request, NewPromotion, context.settings.api.max_body_bytes)
    promotion = Promotion.of(asked.field, ColumnType.parse(asked.type), asked.column)
    await _authorize(principal, database, table, context, "promote")
    made = await context.in_thread(tables.promote, database, table, promotion)
    return PromotionBody(
        field=made.field, column=made.column, type=str(made.type), read_as=made.read_as
    )


async def _authorize(
    principal: Principal, database: str, table: str, context: IngestContext, act: str = ""
) -> None:
    name = context.ingest.name_of(database, table)
    await context.guard.authorize(principal, Action.WRITE_INGEST, name, act)


def _arrival(principal: Principal, request: Request, context: IngestContext) -> Arrival:
    headers = request.headers
    database, table = headers.get("x-database", ""), headers.get("x-table", "")
    if not database or not table:
        raise MissingTable()
    check_names(database, table)
    key = headers.get("x-idempotency-key", headers.get("idempotency-key"))
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidIngestKey()
    ingest = context.settings.ingest
    return Arrival.of(
        principal,
        key or f"rest:{uuid4()}",
        "rest",
        database,
        table,
        auto_create=_flag(headers.get("x-auto-create"), ingest.auto_create, "X-Auto-Create"),
        schema_evolve=_flag(
            headers.get("x-schema-evolve"), ingest.schema_evolve, "X-Schema-Evolve"
        ),
    )


def _flag(given: str | None, default: bool, header: str) -> bool:
    if given is None:
        return default
    if given.strip().lower() not in _WORDS:
        raise InvalidHeader(f"{header} is true or false.")
    return _WORDS[given.strip().lower()]


def _require_ndjson(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() not in _MEDIA_TYPES or charset not in ("", "utf-8", "utf8"):
        raise WrongMediaType()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise BadBody("The caller hung up before the body was complete.") from None


def _ack(settled: IngestRequest, *, replayed: bool) -> Ack:
    figures = {name: getattr(settled, name) for name in Ack.model_fields if name != "replayed"}
    return Ack(**figures, replayed=replayed)


def _table_body(database: str, table: str, columns: tuple[Column, ...]) -> TableBody:
    return TableBody(
        database=database,
        table=table,
        columns=[
            ColumnBody(name=column.name, type=str(column.type), required=column.required)
            for column in columns
        ],
    )
