"""One set of client properties for two clients: Moraine's is librdkafka, Spark's is Java.

Users write librdkafka's names, most of which both clients have. Java's other names are derived from
them; names that only Java has go to Java alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_JAVA_ONLY = ("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.", "sasl.login.", "sasl.client.")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PEM = {
    "ssl.ca": "ssl.truststore.certificates",
    "ssl.certificate": "ssl.keystore.certificate.chain",
    "ssl.key": "ssl.keystore.key",
}
_RDKAFKA_ONLY = frozenset({"sasl.username", "sasl.password", "sasl.mechanisms"})


def for_librdkafka(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not name.startswith(_JAVA_ONLY)}


def for_java(properties: Mapping[str, str]) -> dict[str, str]:
    """With secrets: never log them."""
    made = {**_sasl(properties), **_certificates(properties)}
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        made["ssl.endpoint.identification.algorithm"] = ""
    shared = {
        name: value
        for name, value in properties.items()
        if name not in _RDKAFKA_ONLY and not name.startswith((*(f"{one}." for one in _PEM),))
    }
    # Properties that the user gave under Java's names win.
    own = {name: value for name, value in shared.items() if name.startswith(_JAVA_ONLY)}
    return {**shared, **made, **own}


def _sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanisms") or properties.get("sasl.mechanism")
    if mechanism is None:
        return {}
    made = {"sasl.mechanism": mechanism}
    module = _LOGIN_MODULES.get(mechanism)
    if module and "sasl.username" in properties:
        user, password = (
            _quoted(properties.get(f"sasl.{one}", "")) for one in ("username", "password")
        )
        made["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return made


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(properties: Mapping[str, str]) -> dict[str, str]:
    made = {}
    for name, java in _PEM.items():
        pem = properties.get(f"{name}.pem")
        if location := properties.get(f"{name}.location"):
            pem = Path(location).read_text()
        if pem:
            made[java] = pem
            made[f"{java.rsplit('store.', 1)[0]}store.type"] = "PEM"
    if password := properties.get("ssl.key.password"):
        made["ssl.key.password"] = password
    return made
