"""The REST door: NDJSON in, a committed snapshot out."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from moraine.api.auth import Access
from moraine.api.body import read_model
from moraine.api.context import Context, context_of
from moraine.ingest.columns import Column, ColumnType
from moraine.ingest.decompression import unpacked
from moraine.ingest.doors import DAG
from moraine.ingest.errors import (
    BadBody,
    InvalidHeader,
    InvalidKey,
    MissingTable,
    NoSuchKey,
    WrongMediaType,
)
from moraine.ingest.model import Arrival, State
from moraine.ingest.model import Request as Taken
from moraine.ingest.names import check_names
from moraine.ingest.openapi import LINES, errors, json_body
from moraine.ingest.promotion import Promotion
from moraine.ingest.schemas import columns_of
from moraine.ingest.settled import rejection_of
from moraine.ingest.tables import IngestTables

_MEDIA_TYPES = {"application/x-ndjson", "application/ndjson", "application/jsonl"}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ack(BaseModel):
    snapshot_id: int = Field(description="The snapshot that has the rows")
    extent_count: int = Field(description="Data files that have rows of this request")
    rows_ingested: int
    bytes_written: int = Field(description="This request's part of those files")
    replayed: bool = Field(description="Whether it was written by an earlier request")


class RequestStatus(BaseModel):
    key: str
    state: State
    door: str
    database: str
    table: str
    failures: int = Field(description="How often Spark failed on it; it is tried again")
    snapshot_id: int | None
    extent_count: int | None
    rows_ingested: int | None
    bytes_written: int | None
    error: dict[str, Any] | None
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
    field: str = Field(description="As lines have it")
    type: str
    column: str = Field("", description="By default the field's name and the type's")


class PromotionBody(BaseModel):
    field: str
    column: str
    type: str
    read_as: str = Field(description="An expression that has the old rows and the new ones")


def requires(access: Access) -> Any:
    async def check(request: Request) -> None:
        await context_of(request).authenticator.check(request, access, DAG)

    return Depends(check)


async def _tables(request: Request) -> IngestTables:
    return context_of(request).ingest.tables


router = APIRouter()
_NEW_TABLE = {
    "database": "shop",
    "table": "orders",
    "columns": [
        {"name": "id", "type": "long", "required": True},
        {"name": "at", "type": "timestamp"},
    ],
}
_Context = Annotated[Context, Depends(context_of)]
_Tables = Annotated[IngestTables, Depends(_tables)]


@router.post(
    "/v1/ingest",
    operation_id="ingestLines",
    summary="Write lines to a table",
    dependencies=[requires(Access.EXECUTE)],
    tags=["ingest"],
    openapi_extra=LINES,
    responses=errors(400, 404, 409, 413, 415, 422, 429, 502),
)
async def ingest(request: Request, context: _Context) -> Ack:
    """Write the lines of the body to a table: all of them, once, or none."""
    limits = context.settings.ingest.rest
    context.settings.catalog(context.settings.ingest_catalog)  # or say that there is none
    arrival = _arrival(request, context)
    _require_ndjson(request)
    context.ingest.rate.take(arrival.database)
    encoding = request.headers.get("content-encoding", "")
    body = unpacked(_chunks(request), encoding, limits.max_body_bytes)
    intake = context.ingest.intake
    receipt = await intake.receive(arrival, body)
    taken = await intake.outcome(receipt, limits.wait.total_seconds())
    if taken.state is State.REJECTED:
        raise rejection_of(taken)
    # Whoever came while the first was still under way gets the answer that the first gets.
    replayed = receipt.known is not None and receipt.known.state is State.APPLIED
    if replayed:
        await intake.ledger.count_replay(arrival.door)
    return _ack(taken, replayed=replayed)


@router.get(
    "/v1/requests/{key:path}",
    operation_id="getRequest",
    summary="What became of a key",
    dependencies=[requires(Access.READ)],
    tags=["ingest"],
    responses=errors(404),
)
async def status(key: str, context: _Context) -> RequestStatus:
    """What became of a key."""
    found = (await context.ingest.intake.ledger.find([key])).get(key)
    if found is None:
        raise NoSuchKey()
    return RequestStatus(
        database=found.database_name,
        table=found.table_name,
        **{
            name: getattr(found, name)
            for name in RequestStatus.model_fields
            if name not in ("database", "table")
        },
    )


@router.post(
    "/v1/tables",
    operation_id="createTable",
    summary="Make a table with typed columns",
    status_code=201,
    dependencies=[requires(Access.EXECUTE)],
    tags=["tables"],
    openapi_extra=json_body(NewTable, _NEW_TABLE),
    responses=errors(400, 409, 413, 415, 502),
)
async def create_table(request: Request, context: _Context, tables: _Tables) -> TableBody:
    """Make a table with typed columns."""
    asked = await read_model(request, NewTable, context.settings.api.max_body_bytes)
    check_names(asked.database, asked.table)
    columns = [Column(one.name, ColumnType.parse(one.type), one.required) for one in asked.columns]
    made = await context.in_thread(tables.create, asked.database, asked.table, columns)
    return _table_body(asked.database, asked.table, columns_of(made.schema()))


@router.get(
    "/v1/tables/{database}/{table}",
    operation_id="describeTable",
    summary="A table's columns",
    dependencies=[requires(Access.READ)],
    tags=["tables"],
    responses=errors(404, 502),
)
async def describe_table(
    database: str, table: str, context: _Context, tables: _Tables
) -> TableBody:
    """The columns that lines are coerced to."""
    found = await context.in_thread(tables.load, database, table)
    return _table_body(database, table, columns_of(found.schema()))


@router.post(
    "/v1/tables/{database}/{table}/promotions",
    operation_id="promoteField",
    summary="Give a field a typed column",
    status_code=201,
    dependencies=[requires(Access.EXECUTE)],
    tags=["tables"],
    openapi_extra=json_body(NewPromotion, {"field": "latency_ms", "type": "real"}),
    responses=errors(400, 404, 409, 413, 415, 502),
)
async def promote(
    database: str, table: str, request: Request, context: _Context, tables: _Tables
) -> PromotionBody:
    """Give a field a typed column from now on."""
    asked = await read_model(request, NewPromotion, context.settings.api.max_body_bytes)
    promotion = Promotion.of(asked.field, ColumnType.parse(asked.type), asked.column)
    made = await context.in_thread(promotion.apply, tables, database, table)
    return PromotionBody(
        field=made.field, column=made.column, type=str(made.type), read_as=made.read_as
    )


def _arrival(request: Request, context: Context) -> Arrival:
    headers = request.headers
    database, table = headers.get("x-database", ""), headers.get("x-table", "")
    if not database or not table:
        raise MissingTable()
    check_names(database, table)
    key = headers.get("x-idempotency-key", headers.get("idempotency-key"))
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidKey()
    ingest = context.settings.ingest
    return Arrival(
        key or f"rest:{uuid4()}",
        "rest",
        database,
        table,
        _flag(headers.get("x-auto-create"), ingest.auto_create, "X-Auto-Create"),
        _flag(headers.get("x-schema-evolve"), ingest.schema_evolve, "X-Schema-Evolve"),
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


def _ack(taken: Taken, *, replayed: bool) -> Ack:
    figures = {name: getattr(taken, name) for name in Ack.model_fields if name != "replayed"}
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
