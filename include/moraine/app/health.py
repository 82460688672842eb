"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from moraine.access.model import Action
from moraine.app.context import AppContext
from moraine.http.context import context_of, requires
from moraine.http.probe import OK
from moraine.tasks.routes import errors

router = APIRouter(tags=["Operations"])
Ctx = Annotated[AppContext, Depends(context_of)]


_METRICS = """\
# HELP moraine_tasks Tasks by type and state
# TYPE moraine_tasks gauge
moraine_tasks{status="RUNNING",type="TABLE_PURGE"} 2.0
"""


class Liveness(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "alive"}]},
        json_schema_serialization_defaults_required=True,
    )

    status: Literal["alive"] = "alive"


class Readiness(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "status": "not ready",
                    "dependencies": {
                        "ledger": "LEDGER_UNAVAILABLE",
                        "airflow": "ok",
                        "notifications": "ok",
                    },
                }
            ]
        }
    )

    status: Literal["ready", "not ready"]
    dependencies: dict[str, str] = Field(description="`ok`, or the code of what is wrong")


@router.get("/health/live", operation_id="live", summary="The process answers")
async def live() -> Liveness:
    return Liveness()


@router.get(
    "/health/ready",
    operation_id="ready",
    summary="Every dependency answers",
    responses={503: {"model": Readiness, "description": "A dependency does not answer."}},
)
async def ready(context: Ctx, response: Response) -> Readiness:
    answers = await asyncio.gather(*(probe.answer() for probe in context.probes.values()))
    found = dict(zip(context.probes, answers, strict=True))
    all_well = all(answer == OK for answer in answers)
    response.status_code = 200 if all_well else 503
    return Readiness(status="ready" if all_well else "not ready", dependencies=found)


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": _METRICS}}},
        **errors(401, 403, 503),
    },
    dependencies=[requires(Action.READ_TASKS)],
)
async def metrics(context: Ctx) -> Response:
    text = await context.in_thread(context.metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
