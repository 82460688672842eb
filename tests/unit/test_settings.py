"""Settings: where they come from, what they look like, and what is an error at start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from moraine.errors import CatalogNotConfigured
from moraine.settings import IdempotencySettings, Settings, get_settings
from moraine.settings.values import Duration
from moraine.tasks.retry import RetryPolicy, policy_for

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

Given = Callable[..., Settings]


def policy(settings: Settings, task_type: str) -> RetryPolicy:
    return policy_for(task_type, settings.delegation.retry)


def test_the_seeds_defaults(given_settings: Given) -> None:
    settings = given_settings()
    assert policy(settings, "default") == RetryPolicy(5, 30 * SECOND, 2.0, HOUR, 0.1)
    assert policy(settings, "TABLE_PURGE") == RetryPolicy(10, MINUTE, 2.0, HOUR, 0.1)
    assert policy(settings, "TABLE_COMPACTION") == policy(settings, "default")
    assert settings.delegation.task.lease.lost_timeout_duration == HOUR


def test_the_file_uses_the_seeds_names(given_settings: Given) -> None:
    settings = given_settings(
        """
        realm = "prod"
        delegation.retry.default.max-attempts = 7
        delegation.task.lease.lost-timeout-duration = "90m"

        [delegation.retry.TABLE_PURGE]
        initial-backoff-duration = "PT2M"
        backoff-multiplier = 3.0
        max-backoff-duration = "30m"

        [catalogs.my-catalog]
        uri = "http://localhost:8181"
        """
    )
    assert settings.realm == "prod"
    assert settings.delegation.task.lease.lost_timeout_duration == 90 * MINUTE
    assert policy(settings, "TABLE_PURGE") == RetryPolicy(10, 2 * MINUTE, 3.0, 30 * MINUTE, 0.1)
    assert list(settings.catalogs) == ["my-catalog"], "a name that users choose stays as it is"


def test_what_a_type_leaves_out_it_takes_from_the_default(given_settings: Given) -> None:
    settings = given_settings(
        """
        [delegation.retry.default]
        max-attempts = 3
        jitter = 0.5
        max-backoff-duration = "5m"
        [delegation.retry.TABLE_COMPACTION]
        initial-backoff-duration = "10s"
        """
    )
    compaction = policy(settings, "TABLE_COMPACTION")
    assert compaction == RetryPolicy(3, 10 * SECOND, 2.0, 5 * MINUTE, 0.5)
    # The seed gives TABLE_PURGE its own first two, and the default the rest.
    assert policy(settings, "TABLE_PURGE") == RetryPolicy(10, MINUTE, 2.0, 5 * MINUTE, 0.5)


def test_the_environment_comes_before_the_file(given_settings: Given) -> None:
    settings = given_settings(
        """
        realm = "file"
        [delegation.task]
        retention = "7d"
        cleanup-batch = 50
        """,
        MORAINE_REALM="environment",
        MORAINE_DELEGATION__TASK__RETENTION="1d",
    )
    assert settings.realm == "environment"
    assert settings.delegation.task.retention == timedelta(days=1)
    assert settings.delegation.task.cleanup_batch == 50, "the file's other keys still hold"


def test_the_environment_changes_one_property_of_a_policy(given_settings: Given) -> None:
    settings = given_settings(
        MORAINE_DELEGATION__RETRY__TABLE_PURGE__MAX_ATTEMPTS="2",
        MORAINE_DELEGATION__RETRY__DEFAULT__MAX_ATTEMPTS="4",
    )
    assert policy(settings, "TABLE_PURGE") == RetryPolicy(2, MINUTE, 2.0, HOUR, 0.1)
    assert policy(settings, "OTHER").max_attempts == 4


@pytest.mark.parametrize(
    "toml",
    [
        "reelm = 'demo'",
        "delegation.task.retentoin = '7d'",
        "delegation.retry.TABLE_PURGE.max-atempts = 3",
        "delegation.task.lease.lost-timeout = '1h'",
        "[catalogs.demo]\nuri = 'http://localhost'\nwharehouse = 'x'",
        "[ledger]\npool_sise = 3",
    ],
)
def test_a_name_that_does_not_exist_in_the_file_is_an_error(
    given_settings: Given, toml: str
) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        given_settings(toml)


@pytest.mark.parametrize(
    "name",
    [
        "MORAINE_REELM",
        "MORAINE_LEDGER_URL",
        "MORAINE_LEDGER__URLL",
        "MORAINE_DELEGATION__TASK__RETENTOIN",
        "MORAINE_DELEGATION__RETRY__TABLE_PURGE__MAX_ATEMPTS",
    ],
)
def test_a_name_that_does_not_exist_in_the_environment_is_an_error(
    given_settings: Given, name: str
) -> None:
    with pytest.raises(ValueError, match=r"is not a setting|Extra inputs are not permitted"):
        given_settings(**{name: "1"})


@pytest.mark.parametrize(
    "toml",
    [
        "delegation.retry.default.max-attempts = 0",
        "delegation.retry.default.backoff-multiplier = 0.5",
        "delegation.retry.default.jitter = 1.5",
        "delegation.task.retention = 'a while'",
        "delegation.task.sweep-batch = 0",
    ],
)
def test_an_invalid_value_is_an_error(given_settings: Given, toml: str) -> None:
    with pytest.raises(ValidationError):
        given_settings(toml)


def test_a_file_that_is_named_must_be_there(
    given_settings: Given, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given_settings()
    monkeypatch.setenv("MORAINE_CONFIG", str(tmp_path / "gone.toml"))
    get_settings.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"gone\.toml"):
        get_settings()


def test_settings_are_read_once_and_do_not_change(given_settings: Given) -> None:
    settings = given_settings()
    assert get_settings() is settings
    with pytest.raises(ValidationError, match="frozen"):
        settings.realm = "other"


def test_a_secret_is_not_shown(given_settings: Given) -> None:
    settings = given_settings(MORAINE_LEDGER__URL="postgresql://moraine:hunter2@db/moraine")
    assert "hunter2" not in repr(settings)
    assert settings.ledger.url.get_secret_value().endswith("hunter2@db/moraine")


durations = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30 * SECOND),
        ("1.5s", 1.5 * SECOND),
        ("1h", HOUR),
        ("1h30m", HOUR + 30 * MINUTE),
        ("7d", timedelta(days=7)),
        ("2d3h4m5s", timedelta(days=2, hours=3, minutes=4, seconds=5)),
        ("PT30S", 30 * SECOND),
        ("PT1H", HOUR),
        ("P7D", timedelta(days=7)),
    ],
)
def test_durations_in_both_notations(text: str, expected: timedelta) -> None:
    assert durations.validate_python(text) == expected


@pytest.mark.parametrize("text", ["", " ", "1x", "s", "h1", "5", "soon", "-PT5S", "1h 30m later"])
def test_values_that_are_not_durations_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        durations.validate_python(text)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_both_notations_mean_the_same(days: int, hours: int, minutes: int, seconds: int) -> None:
    short = f"{days}d{hours}h{minutes}m{seconds}s"
    iso = f"P{days}DT{hours}H{minutes}M{seconds}S"
    assert durations.validate_python(short) == durations.validate_python(iso)


def test_the_environment_changes_one_property_of_a_policy_and_leaves_the_others(
    given_settings: Given,
) -> None:
    settings = given_settings(
        """
        [delegation.retry.TABLE_PURGE]
        max-attempts = 3
        initial-backoff-duration = "5s"
        """,
        MORAINE_DELEGATION__RETRY__TABLE_PURGE__MAX_ATTEMPTS="4",
    )
    assert policy(settings, "TABLE_PURGE") == RetryPolicy(4, 5 * SECOND, 2.0, HOUR, 0.1)


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ({"catalogs": {"a": {"uri": "http://a"}}}, "a"),
        ({"catalogs": {n: {"uri": "http://a"} for n in "ab"}, "ingest": {"catalog": "b"}}, "b"),
        (
            {
                "catalogs": {n: {"uri": "http://a"} for n in "ab"},
                "gateway": {"default_catalog": "b"},
            },
            "b",
        ),
        ({"catalogs": {n: {"uri": "http://a"} for n in "ab"}}, None),
        ({}, None),
        ({"catalogs": {"a": {"uri": "http://a"}}, "ingest": {"enabled": False}}, None),
    ],
)
def test_ingest_is_on_where_it_has_a_catalog(chosen: dict[str, Any], name: str | None) -> None:
    settings = Settings(**chosen)
    assert settings.ingest_is_on is (name is not None)
    if name is None:
        with pytest.raises(CatalogNotConfigured, match="Ingest is off"):
            _ = settings.ingest_catalog
    else:
        assert settings.ingest_catalog == name


def test_by_default_a_duplicate_outwaits_an_owner_that_died() -> None:
    keys = IdempotencySettings()
    assert keys.wait > keys.lease + keys.heartbeat


@pytest.mark.parametrize("chosen", [{"wait": "40s"}, {"wait": "0s"}, {"lease": "34s"}])
def test_a_wait_shorter_than_a_lost_lease_is_refused(chosen: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="wait must be longer than lease and a heartbeat"):
        IdempotencySettings.model_validate(chosen)


def test_a_short_lease_allows_a_short_wait() -> None:
    keys = IdempotencySettings.model_validate({"lease": "3s", "wait": "4.1s"})
    assert keys.heartbeat == timedelta(seconds=1)
