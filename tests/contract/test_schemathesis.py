"""Schemathesis against the running app: whatever a caller sends, the document holds.

Nothing is left out. A worker ends every task at once, so that the synchronous route and the
event stream answer for good.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from moraine.app.assembly import openapi_document
from moraine.settings import Settings
from moraine.tasks.store import TaskStore
from support import issuer as tokens
from support.airflow_server import PASSWORD, airflow_server
from support.api_server import Api, Hand, finishing_everything, running_api
from support.issuer import Issuer
from support.waiting import wait_for

schema = schemathesis.openapi.from_dict(openapi_document())
checks = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)


@pytest.fixture
def api(ledger_url: str, store: TaskStore, tmp_path: Path) -> Iterator[Api]:
    issuer = Issuer()
    with airflow_server() as airflow:
        configured = Settings(
            realm="demo",
            ledger={"url": ledger_url},
            airflow={"url": airflow.url, "password": PASSWORD},
            api={
                "accept_airflow_tokens": False,
                "jwt": {"issuer": tokens.URL, "jwks_file": issuer.write_key_set(tmp_path)},
            },
        )
        hand = Hand(store, configured)
        with running_api(configured) as origin, finishing_everything(hand):
            api = Api(origin, issuer.token())
            wait_for(lambda: api.get("/health/ready").status_code == 200)
            yield api


@schema.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_api_does_what_its_openapi_document_says(case: schemathesis.Case, api: Api) -> None:
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        make_it_meet_something(case, api)
    case.call_and_validate(base_url=api.url, headers=api._headers, checks=checks, timeout=20)


def make_it_meet_something(case: schemathesis.Case, api: Api) -> None:
    """Random ids and realms are never there: give half of the requests real ones."""
    if not next(_every_second):
        return
    if "task_id" in case.path_parameters:
        case.path_parameters["task_id"] = api.submit(f"t{next(_numbers)}")
    if isinstance(case.body, dict):
        case.body["common_payload"]["realm_identifier"] = "demo"


_every_second = itertools.cycle([False, True])
_numbers = itertools.count()
