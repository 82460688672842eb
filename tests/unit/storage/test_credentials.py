"""Which properties hold for which location, and until when."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from moraine.storage.credentials import Credentials, RenewedCredentials

ANSWER = {
    "metadata-location": "s3://b/wh/t/metadata/v1.json",
    "config": {"client.region": "eu-1", "s3.access-key-id": "plain", "page": 7, "on": True},
    "storage-credentials": [
        {"prefix": "s3://b/wh", "config": {"s3.access-key-id": "short"}},
        {
            "prefix": "s3a://b/wh/t",
            "config": {
                "s3.access-key-id": "long",
                "s3.secret-access-key": "hush-secret",
                "s3.session-token-expires-at-ms": "1700000000000",
            },
        },
        {"prefix": "gs", "config": {"gcs.oauth2.token-expires-at": "1600000000000"}},
    ],
}


@pytest.mark.parametrize(
    ("path", "key_id"),
    [
        ("s3://b/wh/t/x", "long"),
        ("s3n://b/wh/t/x", "long"),
        ("s3://b/wh/u/x", "short"),
        ("s3://c/x", "plain"),
        ("/local", "plain"),
    ],
)
def test_the_longest_prefix_wins(path: str, key_id: str) -> None:
    config = Credentials.from_load_table(ANSWER).for_location(path)
    assert config["s3.access-key-id"] == key_id
    assert config["client.region"] == "eu-1"
    assert (config["page"], config["on"]) == ("7", "true")


def test_a_scheme_alone_is_a_prefix() -> None:
    config = Credentials.from_load_table(ANSWER).for_location("gcs://b/x")
    assert config["gcs.oauth2.token-expires-at"] == "1600000000000"


def test_the_account_of_a_prefix_has_two_names() -> None:
    credentials = Credentials.from_load_table(
        {
            "storage-credentials": [
                {"prefix": "abfss://c@a.dfs.core.windows.net/t", "config": {"found": "yes"}}
            ]
        }
    )
    assert credentials.for_location("wasbs://c@a.blob.core.windows.net/t/x") == {"found": "yes"}


def test_a_catalog_that_gives_nothing_gives_no_credentials() -> None:
    for body in ({}, {"config": None, "storage-credentials": None}):
        credentials = Credentials.from_load_table(body)
        assert credentials == Credentials()
        assert not credentials.vended
        assert credentials.expires_at is None
        assert credentials.for_location("s3://b/x") == {}


@pytest.mark.parametrize(
    ("name", "vended"),
    [
        ("s3.secret-access-key", True),
        ("gcs.oauth2.token", True),
        ("adls.sas-token.account", True),
        ("adls.auth.shared-key.account.key", True),
        ("client.region", False),
        ("s3.endpoint", False),
    ],
)
def test_vended_means_that_there_is_a_secret(name: str, vended: bool) -> None:
    body = {"storage-credentials": [{"prefix": "s3://b", "config": {name: "x"}}]}
    assert Credentials.from_load_table(body).vended is vended
    assert Credentials({name: "x"}).vended is vended
    assert not Credentials({name: ""}).vended


@pytest.mark.parametrize(
    "name",
    [
        "s3.session-token-expires-at-ms",
        "gcs.oauth2.token-expires-at",
        "adls.sas-token-expires-at-ms.account.dfs.core.windows.net",
        "expiration-time",
    ],
)
def test_expiry_is_read_from_the_properties_of_every_store(name: str) -> None:
    assert Credentials({name: "1700000000500"}).expires_at == datetime(
        2023, 11, 14, 22, 13, 20, 500_000, UTC
    )
    assert Credentials({name: "soon"}).expires_at is None
    assert Credentials({name: "9" * 40}).expires_at is None


def test_the_earliest_expiry_counts() -> None:
    assert Credentials.from_load_table(ANSWER).expires_at == datetime.fromtimestamp(1.6e9, UTC)


def test_overlaid_credentials_override_the_others() -> None:
    credentials = Credentials.from_load_table(ANSWER).overlaid(
        Credentials.from_load_table(
            {
                "config": {"client.region": "us-1"},
                "storage-credentials": [
                    {"prefix": "s3a://b/wh/t", "config": {"s3.access-key-id": "newer"}}
                ],
            }
        )
    )
    config = credentials.for_location("s3://b/wh/t/x")
    assert (config["client.region"], config["s3.access-key-id"]) == ("us-1", "newer")


def test_no_value_is_shown_and_none_is_lost_on_the_way() -> None:
    credentials = Credentials.from_load_table(ANSWER)
    assert "hush" not in repr(credentials)
    assert "eu-1" not in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)) == credentials
    assert credentials.prefixes == ["s3://b/wh", "s3a://b/wh/t", "gs"]


START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def at(self, seconds: float) -> None:
        self.now = START + timedelta(seconds=seconds)


def lasting(seconds: float, name: str = "first") -> Credentials:
    end = int((START + timedelta(seconds=seconds)).timestamp() * 1000)
    return Credentials({"s3.access-key-id": name, "s3.session-token-expires-at-ms": str(end)})


@pytest.mark.parametrize(("lifetime", "due"), [(3600, 3300), (600, 400), (30, 20)])
def test_credentials_are_renewed_before_they_expire(lifetime: float, due: float) -> None:
    clock, newer = Clock(), lasting(10_000, "second")
    first = lasting(lifetime)
    renewed = RenewedCredentials(first, lambda: newer, clock)

    clock.at(due - 1)
    assert renewed.current() is first
    clock.at(due + 1)
    assert renewed.current() is newer
    assert renewed.current() is newer


def test_credentials_that_cannot_be_renewed_are_used_until_the_end() -> None:
    clock, first = Clock(), lasting(60)
    renewed = RenewedCredentials(first, None, clock)
    clock.at(100)
    assert renewed.current() is first
    assert not renewed.replace(first)


def test_a_failed_renewal_is_retried_and_raised_only_after_the_expiry() -> None:
    clock, tries = Clock(), []

    def renew() -> Credentials:
        tries.append(clock.now)
        raise ConnectionError("no catalog")

    first = lasting(900)
    renewed = RenewedCredentials(first, renew, clock)
    clock.at(601)
    assert renewed.current() is first
    assert renewed.current() is first
    assert len(tries) == 1, "not again at once"
    clock.at(640)
    assert renewed.current() is first
    assert len(tries) == 2
    clock.at(901)
    with pytest.raises(ConnectionError):
        renewed.current()


def test_refused_credentials_are_replaced_once_for_all() -> None:
    first, newer = lasting(900), lasting(1800, "second")
    renewals = []

    def renew() -> Credentials:
        renewals.append(newer)
        return newer

    renewed = RenewedCredentials(first, renew, Clock())
    assert renewed.replace(first)
    assert renewed.replace(first), "another thread that used the old ones"
    assert len(renewals) == 1
    assert renewed.current() is newer
