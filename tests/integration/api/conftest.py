"""The API over a real ledger, with a stand-in for Airflow and a worker in the test's hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moraine.settings import Settings
from moraine.tasks.store import TaskStore
from support import issuer as tokens
from support.airflow_server import PASSWORD, AirflowServer, airflow_server
from support.api_server import Api, Hand, running_api
from support.issuer import Issuer

MakeSettings = Callable[..., Settings]
StartApi = Callable[..., Api]


@pytest.fixture(scope="session")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="session")
def key_file(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issuer.write_key_set(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def airflow() -> Iterator[AirflowServer]:
    with airflow_server() as server:
        yield server


@pytest.fixture
def make_settings(ledger_url: str, airflow: AirflowServer, key_file: Path) -> MakeSettings:
    def make(
        *, jwt: dict[str, Any] | None = None, metrics_cache: str = "0s", **changes: Any
    ) -> Settings:
        sections: dict[str, Any] = {
            "ledger": {"url": ledger_url, "pool_size": 4},
            "airflow": {"url": airflow.url, "password": PASSWORD, "timeout": "1s"},
            "api": {},
            "delegation": {},
        }
        for name, section in changes.items():
            sections[name] |= section
        sections["api"] |= {
            "accept_airflow_tokens": False,
            "metrics_cache_duration": metrics_cache,
            "jwt": {"issuer": tokens.URL, **(jwt or {"jwks_file": key_file})},
        }
        return Settings(realm="demo", **sections)

    return make


@pytest.fixture
def start_api(make_settings: MakeSettings, issuer: Issuer) -> Iterator[StartApi]:
    """Starts the API with changed settings; it ends with the test."""
    with ExitStack() as stack:

        def start(**changes: Any) -> Api:
            origin = stack.enter_context(running_api(make_settings(**changes)))
            return Api(origin, issuer.token())

        yield start


@pytest.fixture
def api(start_api: StartApi) -> Api:
    return start_api()


@pytest.fixture
def hand(store: TaskStore, make_settings: MakeSettings) -> Hand:
    return Hand(store, make_settings())
