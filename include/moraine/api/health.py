"""Is it alive, can it work, and how much has it done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from moraine.api.auth import Access
from moraine.errors import MoraineError
from moraine.tasks.routes import Ctx, errors, requires

router = APIRouter(tags=["Operations"])


class Liveness(BaseModel):
    status: Literal["alive"] = "alive"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    dependencies: dict[str, str]


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
    checks: dict[str, Callable[[], None]] = {
        "ledger": context.service.store.ping,
        "airflow": context.dag_runs.ping,
        "notifications": context.feed.check,
    }
    found = {name: await context.in_thread(_try, check) for name, check in checks.items()}
    all_well = all(answer == "ok" for answer in found.values())
    response.status_code = 200 if all_well else 503
    return Readiness(status="ready" if all_well else "not ready", dependencies=found)


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **errors(401, 403, 503),
    },
    dependencies=[requires(Access.READ)],
)
async def metrics(context: Ctx) -> Response:
    text = await context.in_thread(context.metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _try(check: Callable[[], None]) -> str:
    try:
        check()
    except MoraineError as error:
        return str(error)
    return "ok"
