"""Nothing that is called a secret reaches a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from moraine.log import configure, get_logger
from moraine.secret_names import is_secret_name

SECRETS = [
    "password",
    "ledger_password",
    "clientSecret",
    "s3.secret-access-key",
    "s3.access-key-id",
    "aws_access_key_id",
    "adls.sas-token",
    "Authorization",
    "credential",
    "gcs.oauth2.token",
    "private_key",
]
HARMLESS = ["task_id", "subject", "table", "reason", "owner", "attempt", "code", "summary"]


@pytest.fixture(autouse=True)
def _log_settings_are_put_back() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("name", SECRETS)
def test_log_does_not_write_a_secret(name: str, caplog: pytest.LogCaptureFixture) -> None:
    configure()
    with caplog.at_level(logging.INFO):
        get_logger("moraine.test").info("task.admitted", task_id="t-1", **{name: "hunter2"})
    assert "hunter2" not in caplog.text
    assert "***" in caplog.text
    assert "t-1" in caplog.text


@pytest.mark.parametrize("name", HARMLESS)
def test_log_writes_what_is_no_secret(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_secret_name(name)
    configure()
    with caplog.at_level(logging.INFO):
        get_logger("moraine.test").info("task.admitted", **{name: "plain to see"})
    assert "plain to see" in caplog.text


def test_log_level_is_that_of_the_last_configuration() -> None:
    """`moraine` itself is quiet; the server it starts is not."""
    root = logging.getLogger()
    before = root.level
    try:
        configure(level=logging.WARNING)
        configure()
        assert root.level == logging.INFO
    finally:
        root.setLevel(before)
