"""The Compose file and the Dockerfile, as several tests of them read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from moraine.local.airflow import COMPONENTS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPONENT_NAMES = [component.name for component in COMPONENTS]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:[?-])([^}]*))?\}")


def environment_of(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in SERVICES[service].get("environment", {}).items()}


def mounts_of(service: str) -> dict[str, str]:
    """Volumes by the path that they have in the container."""
    volumes = (str(volume).split(":") for volume in SERVICES[service].get("volumes", ()))
    return {path: name for name, path, *_ in volumes}


def filled_in(text: str) -> str:
    """With a word for every variable that the user sets."""
    return VARIABLE.sub(lambda match: match[3] if match[2] == ":-" else "secret", text)


def spark_defaults(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines() if line)
