"""The image has the versions, files and commands that it needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import typer

from moraine import cli
from moraine.local import jars, java
from support.compose import (
    DOCKERFILE,
    ROOT,
    SERVICES,
)


def dockerfile_argument(name: str) -> str:
    found = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.M)
    assert found
    return found[1]


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    found = (re.match(r"([\w.-]+)(?:\[.*\])?==([^\s;]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def test_dockerfile_has_the_versions_of_the_requirements() -> None:
    required, locked = pins("requirements.txt"), pins("requirements.lock")
    assert {name: locked[name] for name in required} == required
    assert dockerfile_argument("AIRFLOW_VERSION") == required["apache-airflow"]
    assert dockerfile_argument("JAVA_VERSION") == str(java.VERSION)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].startswith(f">={dockerfile_argument('PYTHON_VERSION')},")
    assert SERVICES["scheduler"]["image"] == f"moraine:{project['version']}"
    assert "FROM apache/airflow:slim-${AIRFLOW_VERSION}-python${PYTHON_VERSION}" in DOCKERFILE
    assert "pip install --no-cache-dir -r requirements.txt -c requirements.lock" in DOCKERFILE


def test_dockerfile_and_requirements_have_one_version_of_spark() -> None:
    required = pins("requirements.txt")
    assert required["pyspark"] == required["pyspark-client"]
    minor = ".".join(required["pyspark"].split(".")[:2])
    runtimes = [path.name for path in jars.Jars.pinned(Path("/")).class_path("spark")]
    assert any(name.startswith(f"iceberg-spark-runtime-{minor}_") for name in runtimes)


def test_dockerfile_copies_what_is_there_and_not_ignored() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        source
        for line in re.findall(r"^COPY --chown=\S+ (.+)$", DOCKERFILE, re.M)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in kept, source
    inside = re.findall(r"/opt/moraine/([\w./-]+)", (ROOT / "docker-compose.yaml").read_text())
    assert inside
    for path in inside:
        assert (ROOT / path).exists(), path
        assert path.split("/")[0] in copied, path


def test_dockerfile_commands_exist() -> None:
    known = typer.main.get_command(cli.app)
    scripts = (SERVICES[name]["command"] for name in ("airflow-init", "tls-init"))
    script = "\n".join([DOCKERFILE, *(line for command in scripts for line in command)])
    called = re.findall(r"(?:^|&& )\s*moraine ([a-z ]+?)(?: --.*)?$", script, re.M)
    assert sorted(called) == ["ledger upgrade", "setup", "tls init"]
    for words in called:
        command: Any = known
        for word in words.split():
            command = command.commands[word]
