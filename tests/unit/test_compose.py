"""The Compose file is valid by itself."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import pytest

from moraine.secret_names import is_secret_name
from support.compose import (
    COMPOSE,
    ROOT,
    SERVICES,
    VARIABLE,
    environment_of,
)

SCHEMA = json.loads((ROOT / "tests/data/compose-spec.json").read_text())
ONE_SHOT = {"polaris-init", "tls-init", "catalog-init", "airflow-init"}


def test_compose_file_follows_the_compose_specification() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(COMPOSE)


@pytest.mark.parametrize(
    ("service", "wrong"),
    [
        ("postgres", {"imagee": "postgres:18"}),
        ("scheduler", {"depends_on": {"api-server": {"condition": "service_ready"}}}),
        ("polaris", {"healthcheck": {"retries": "many times", "every": "10s"}}),
    ],
)
def test_compose_schema_refuses_mistakes(service: str, wrong: dict[str, Any]) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"][service].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(broken)


def test_compose_publishes_nothing_beyond_the_loopback_interface() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not str(port).startswith("127.0.0.1:")] == []


def test_compose_long_running_services_have_a_health_check_and_restart() -> None:
    for name, service in SERVICES.items():
        if name in ONE_SHOT:
            assert service.get("restart", "no") == "no", name
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] == "CMD", name


def test_compose_services_wait_for_what_can_happen() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert ends == (needed in ONE_SHOT), f"{name} waits for {needed}"


def test_compose_volumes_are_declared_and_files_are_there() -> None:
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_compose_secrets_come_from_the_environment_and_are_required() -> None:
    text = (ROOT / "docker-compose.yaml").read_text()
    example = (ROOT / ".env.example").read_text()
    offered = dict(re.findall(r"^(\w+)=(.*)$", example, re.M))
    used = {match[1]: match[2] for match in VARIABLE.finditer(text)}
    assert set(used) == set(offered)
    assert {name for name, how in used.items() if how == ":?"} == {
        name for name, value in offered.items() if not value
    }
    for name in SERVICES:
        for variable, value in environment_of(name).items():
            if is_secret_name(variable) and not variable.endswith("_FILE"):
                assert VARIABLE.search(value), f"{name}: {variable} is written out"


def test_compose_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":\d[\w.-]*$", service["image"]), name
