"""The Kafka door at a broker that requires TLS and a login, without showing a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moraine.errors import SparkJobFailed
from moraine.ingest.kafka.broker import BrokerUnavailable, PropertiesRefused
from support.ingest import IngestSite
from support.kafka import PASSWORDS
from support.kafka_reading import MakeTopic, Topic, messages


def secure(topic: Topic, mechanism: str, **changes: str) -> dict[str, str]:
    """Settings for the secure listener. Changes are of the client's properties."""
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(topic.broker.authority),
        "sasl.mechanism": mechanism,
        "sasl.username": "reader",
        "sasl.password": PASSWORDS[mechanism],
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return {
        "kafka__bootstrap_servers": topic.broker.secure_servers,
        "kafka__properties": json.dumps(properties),
    }


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_messages_are_read_over_tls_with_a_login(make_topic: MakeTopic, mechanism: str) -> None:
    topic = make_topic()
    topic.send(*messages(["one", "two"]))
    assert topic.read(**secure(topic, mechanism)) == 2
    assert sorted(topic.rows()) == ["one", "two"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl_password": "wrong-password"}, "login"),
        ({"ssl_ca_location": ""}, "certificate"),
    ],
)
def test_a_refused_login_is_said_and_changes_nothing(
    make_topic: MakeTopic, changes: dict[str, str], words: str
) -> None:
    topic = make_topic()
    topic.send(*messages(["one"]))
    with pytest.raises(BrokerUnavailable, match=words) as refused:
        topic.read(**secure(topic, "PLAIN", **changes))
    told = f"{refused.value!r} {refused.value.details}"
    assert not [secret for secret in (*PASSWORDS.values(), "wrong-password") if secret in told]
    assert topic.rows() == []
    assert not topic.open_batches()


def test_secrets_are_in_no_log(
    make_topic: MakeTopic, site: IngestSite, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic()
    secret = "hunter2-of-kafka"
    properties = {
        "security.protocol": "plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": secret,
    }
    topic.send(*messages(["m"]))
    assert topic.read(kafka__properties=json.dumps(properties)) == 1
    topic.send(*messages(["m"]))
    broken = json.dumps({**properties, "sasl.login.class": "no.such.Class"})  # Java's alone
    with pytest.raises(SparkJobFailed) as failed:
        topic.read(kafka__properties=broken)
    assert secret not in f"{failed.value!r} {failed.value.details}"
    broken = json.dumps({**properties, "client.rack": "", "session.timeout.ms": secret})
    with pytest.raises(PropertiesRefused) as refused, topic.reader(kafka__properties=broken):
        pass
    assert secret not in f"{refused.value!r} {refused.value.details}"
    captured = capfd.readouterr()
    assert secret not in captured.out + captured.err
    logs: list[Any] = [path for path in site.stack.home.rglob("*.log") if path.is_file()]
    assert logs
    assert not [path for path in logs if secret in path.read_text(errors="replace")]
