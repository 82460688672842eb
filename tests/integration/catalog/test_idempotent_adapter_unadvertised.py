"""Mutations at servers that do not say, or say in another way, that they know keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from support.adapted_session import FakeTime, commit
from support.keyed_catalog import (
    KEY,
    Fault,
    KeyedCatalog,
    answers,
    error,
    half_an_answer,
    reset_after,
    reset_before,
)
from support.relay import Answer, Forward, Request, Reset


@pytest.fixture
def mute() -> Iterator[KeyedCatalog]:
    """One that does not say that it knows keys."""
    with KeyedCatalog(lifetime=None) as catalog:
        yield catalog


@pytest.mark.parametrize("fault", [reset_before, reset_after, half_an_answer])
def test_idempotent_adapter_repeats_nothing_if_keys_are_not_advertised(
    session: requests.Session, mute: KeyedCatalog, time: FakeTime, fault: Fault
) -> None:
    mute.break_with(fault)
    with pytest.raises(requests.RequestException):
        commit(session, mute)
    mute.break_with(answers(error(503), executed=True))
    assert commit(session, mute).status_code == 503
    assert mute.keys == ["", ""]
    assert time.slept == []


def test_idempotent_adapter_sends_a_callers_key_even_if_keys_are_not_advertised(
    session: requests.Session, mute: KeyedCatalog
) -> None:
    mute.break_with(answers(error(503)))
    assert commit(session, mute, headers={KEY: "mine"}).status_code == 503
    assert mute.keys == ["mine"]


@pytest.mark.parametrize(
    "config",
    [
        {"idempotency-key-lifetime": "PT0S"},
        {"idempotency-key-lifetime": "half an hour"},
        {"properties": {"idempotency-key-supported": "true"}},
        {
            "properties": {
                "idempotency-key-supported": "false",
                "idempotency-key-lifetime": "PT30M",
            }
        },
    ],
)
def test_idempotent_adapter_ignores_an_invalid_advertisement_of_keys(
    session: requests.Session, mute: KeyedCatalog, config: dict[str, Any]
) -> None:
    mute.config |= config
    mute.break_with(answers(error(503)))
    assert commit(session, mute).status_code == 503
    assert mute.keys == [""]


def test_idempotent_adapter_knows_the_other_form_of_advertisement_of_keys(
    session: requests.Session, mute: KeyedCatalog
) -> None:
    mute.config["properties"] = {
        "idempotency-key-supported": "true",
        "idempotency-key-lifetime": "PT30M",
    }
    mute.break_with(reset_after)
    assert commit(session, mute).status_code == 200
    assert len(mute.executed) == 1


class WithoutConfig(KeyedCatalog):
    """Has no configuration, or none today."""

    status = 404

    def answer(self, request: Request, forward: Forward) -> Answer:
        if request.path.endswith("/v1/config"):
            self.seen.append(request)
            if self.status == 0:
                raise Reset
            return error(self.status)
        return super().answer(request, forward)


@pytest.mark.parametrize("status", [404, 401, 500, 503, 0])
def test_idempotent_adapter_without_config_takes_keys_as_not_advertised(
    session: requests.Session, status: int
) -> None:
    with WithoutConfig() as catalog:
        catalog.status = status
        catalog.break_with(answers(error(503)))
        assert commit(session, catalog).status_code == 503
        assert commit(session, catalog).status_code == 200
        assert catalog.keys == ["", ""]
