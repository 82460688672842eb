"""One set of properties, for librdkafka and for Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from moraine.ingest.kafka import broker
from moraine.ingest.kafka.broker import Broker, BrokerUnavailable, PropertiesRefused
from moraine.ingest.kafka.clients import for_java, for_librdkafka

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "reader",
    "sasl.password": 'a"b\\c',
}


def test_a_user_and_a_password_become_what_java_calls_a_login_module() -> None:
    assert for_java(SASL) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="reader" password="a\\"b\\\\c";',
    }
    plain = for_java({**SASL, "sasl.mechanism": "PLAIN"})
    assert plain["sasl.jaas.config"].startswith(
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
    )
    other_name = {"sasl.mechanisms": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    assert set(for_java(other_name)) == {"sasl.mechanism", "sasl.jaas.config"}


def test_javas_own_words_go_to_java_alone_and_come_first() -> None:
    given = {**SASL, "sasl.jaas.config": "mine", "ssl.truststore.location": "/trust.jks"}
    assert for_java(given)["sasl.jaas.config"] == "mine"
    assert for_java(given)["ssl.truststore.location"] == "/trust.jks"
    assert for_librdkafka(given) == SASL


def test_certificates_are_given_to_java_as_text(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"PEM of the {name}")
    given = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "certificate"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert for_java(given) == {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": "PEM of the ca",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.certificate.chain": "PEM of the certificate",
        "ssl.keystore.key": "PEM of the key",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "secret",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert for_java({"ssl.ca.pem": "PEM"}) == {
        "ssl.truststore.certificates": "PEM",
        "ssl.truststore.type": "PEM",
    }


def test_librdkafka_takes_what_is_left_for_it() -> None:
    AdminClient(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "log_level": "0",
            **for_librdkafka({**SASL, "sasl.jaas.config": "x", "ssl.keystore.type": "PEM"}),
        }
    )


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_TIMEOUT", 0.2)
    with pytest.raises(BrokerUnavailable):
        Broker("127.0.0.1:1", {"log_level": "0"}).bounds("events")


def test_a_property_that_is_refused_is_named_without_its_value() -> None:
    for given in ({"security.protocol": "secret"}, {"no.such": "secret"}):
        with pytest.raises(PropertiesRefused) as refused:
            Broker("127.0.0.1:1", given)
        assert next(iter(given)) in str(refused.value)
        assert "secret" not in f"{refused.value!r} {refused.value.details}"
