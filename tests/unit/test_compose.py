"""The Compose file is valid, and describes the platform that the embedded stack runs."""

from __future__ import annotations

import copy
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from moraine import cli, runtime
from moraine.local import jars, java, spark
from moraine.local.airflow import COMPONENTS, ApiServer
from moraine.local.errors import StackError
from moraine.local.stack import Stack
from moraine.local.vault import Vault
from moraine.log import is_secret_name
from moraine.settings import PortSettings, Settings, StackSettings, get_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCHEMA = json.loads((ROOT / "tests/data/compose-spec.json").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ONE_SHOT = {"polaris-init", "catalog-init", "airflow-init"}
COMPONENT_NAMES = [component.name for component in COMPONENTS]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:[?-])([^}]*))?\}")

# What a container cannot share with a process on the same machine, and why.
AIRFLOW_DIFFERS = {
    # paths
    "AIRFLOW__CORE__DAGS_FOLDER",
    "AIRFLOW__CORE__PLUGINS_FOLDER",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
    "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY",
    # hosts
    "AIRFLOW__API__HOST",
    "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC",
    # secrets
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__API__SECRET_KEY",
    "AIRFLOW__API_AUTH__JWT_SECRET",
}
AIRFLOW_LEFT_OUT = {"AIRFLOW__CORE__HOSTNAME_CALLABLE"}  # a container's own name is right
SPARK_DIFFERS = {
    "spark.driver.extraJavaOptions",
    "spark.master",
    "spark.driver.extraClassPath",
    "spark.executor.extraClassPath",
    "spark.local.dir",
    "spark.sql.warehouse.dir",
    "spark.sql.catalog.demo.uri",
    "spark.connect.grpc.binding.address",
}
# The driver's address is an option of the Connect server; the tables are not local files.
SPARK_LEFT_OUT = {
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.sql.catalog.demo.io-impl",
}
SPARK_ADDED = {"spark.sql.catalog.demo.warehouse"}  # the fixture has one warehouse, Polaris many


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Stack:
    """The embedded stack on paper: with default ports and secrets that are written nowhere."""

    def no_java() -> None:
        raise StackError("not asked for")

    monkeypatch.setattr(spark, "find_java", no_java)
    stack = Stack(StackSettings(home=Path("/nowhere")))
    stack.__dict__["vault"] = Vault()
    return stack


def environment_of(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in SERVICES[service].get("environment", {}).items()}


def filled_in(text: str) -> str:
    """With a word for every variable that the user sets."""
    return VARIABLE.sub(lambda match: match[3] if match[2] == ":-" else "secret", text)


def dockerfile_argument(name: str) -> str:
    found = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.M)
    assert found
    return found[1]


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    found = (re.match(r"([\w.-]+)(?:\[.*\])?==([^\s;]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def spark_defaults(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines() if line)


def conf_options(argv: list[str]) -> dict[str, str]:
    options = [argv[n + 1] for n, word in enumerate(argv) if word == "--conf"]
    return dict(option.split("=", 1) for option in options)


# --- The file by itself ---------------------------------------------------------------------


def test_file_follows_the_compose_specification() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(COMPOSE)


@pytest.mark.parametrize(
    ("service", "wrong"),
    [
        ("postgres", {"imagee": "postgres:18"}),
        ("scheduler", {"depends_on": {"api-server": {"condition": "service_ready"}}}),
        ("polaris", {"healthcheck": {"retries": "many times", "every": "10s"}}),
    ],
)
def test_schema_refuses_mistakes(service: str, wrong: dict[str, Any]) -> None:
    broken = copy.deepcopy(COMPOSE)
    broken["services"][service].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(broken)


def test_nothing_is_published_beyond_the_loopback_interface() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not str(port).startswith("127.0.0.1:")] == []


def test_long_running_services_have_a_health_check_and_come_back() -> None:
    for name, service in SERVICES.items():
        if name in ONE_SHOT:
            assert service.get("restart", "no") == "no", name
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] == "CMD", name


def test_services_wait_for_what_can_happen() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert ends == (needed in ONE_SHOT), f"{name} waits for {needed}"


def test_volumes_are_declared_and_files_are_there() -> None:
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_secrets_come_from_the_environment_and_are_asked_for() -> None:
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


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":\d[\w.-]*$", service["image"]), name


# --- Against the embedded stack -------------------------------------------------------------


def test_airflow_components_are_those_of_the_stack(stack: Stack) -> None:
    for component in COMPONENTS:
        argv = component(stack.airflow).command().argv
        assert argv[1:3] == ("-m", "airflow")
        assert SERVICES[component.name]["command"] == list(argv[3:])
        assert "entrypoint" not in SERVICES[component.name]


def test_components_are_known_to_be_well_by_the_same_signs() -> None:
    for component in COMPONENTS:
        check = SERVICES[component.name]["healthcheck"]["test"]
        if component is ApiServer:
            path = check[-1].removeprefix("http://localhost:8080")
            assert path in inspect.getsource(ApiServer.probe)
        else:
            assert check[check.index("--job-type") + 1] == component.job_type  # type: ignore[attr-defined]


@pytest.mark.parametrize("service", [*COMPONENT_NAMES, "airflow-init"])
def test_airflow_is_configured_as_in_the_stack(stack: Stack, service: str) -> None:
    own = {k: v for k, v in environment_of(service).items() if k.startswith("AIRFLOW__")}
    embedded = {k: v for k, v in stack.airflow.variables().items() if k.startswith("AIRFLOW__")}
    assert set(embedded) - set(own) == AIRFLOW_LEFT_OUT
    assert set(own) - set(embedded) == set()
    agreeing = set(own) - AIRFLOW_DIFFERS
    assert {k: own[k] for k in agreeing} == {k: embedded[k] for k in agreeing}
    assert {k for k in AIRFLOW_DIFFERS if filled_in(own[k]) == embedded[k]} == set()


@pytest.mark.parametrize("service", COMPONENT_NAMES)
def test_connections_are_those_that_dags_use(stack: Stack, service: str) -> None:
    prefix = "AIRFLOW_CONN_"
    own = {
        name.removeprefix(prefix).lower(): json.loads(filled_in(value))
        for name, value in environment_of(service).items()
        if name.startswith(prefix)
    }
    embedded = {
        name.removeprefix(prefix).lower(): json.loads(value)
        for name, value in stack.airflow.variables().items()
        if name.startswith(prefix)
    }
    assert set(embedded) == {runtime.LEDGER, runtime.SPARK, runtime.AIRFLOW}
    # Polaris wants to know who asks; the embedded catalog does not.
    assert set(own) - set(embedded) == {f"{runtime.CATALOG}demo"}
    for name in embedded:
        connection = own[name]
        for field in ("conn_type", "login", "schema"):
            assert connection.get(field) == embedded[name].get(field), f"{name}: {field}"
        assert ("password" in connection) == ("password" in embedded[name])
        assert connection.get("extra", {}).keys() == embedded[name].get("extra", {}).keys()
        assert connection["host"] in SERVICES
    assert own[runtime.SPARK]["port"] == embedded[runtime.SPARK]["port"]
    assert own[runtime.AIRFLOW]["port"] == embedded[runtime.AIRFLOW]["port"]


@pytest.mark.parametrize("service", COMPONENT_NAMES)
def test_moraine_is_configured_by_the_same_variables(stack: Stack, service: str) -> None:
    own = {name for name in environment_of(service) if name.startswith("MORAINE_")}
    embedded = {name for name in stack.environment() if name.startswith("MORAINE_")}
    assert own == embedded - {"MORAINE_STACK__HOME"}


def test_ports_are_those_of_the_stack() -> None:
    ports = PortSettings()
    expected = {
        "postgres": {ports.postgres},
        "polaris": {ports.catalog},
        "spark-connect": {ports.spark, ports.spark_ui},
        "api-server": {ports.airflow, ports.otlp},
    }
    published = {
        name: {int(port.split(":")[1]) for port in service["ports"]}
        for name, service in SERVICES.items()
        if "ports" in service
    }
    assert published == expected


def test_connect_server_is_started_as_in_the_stack(stack: Stack) -> None:
    embedded = list(stack.spark.command().argv)
    service = SERVICES["spark-connect"]
    assert service["entrypoint"] == [Path(embedded[0]).name]
    own = service["command"]
    assert own[:4] == embedded[1:5]  # --class CLASS --name NAME
    assert own[-1] == embedded[-1]
    options = conf_options(own)
    address = {"spark.driver.host": "spark-connect", "spark.driver.bindAddress": "0.0.0.0"}
    assert options == conf_options(embedded) | address


def test_spark_is_configured_as_in_the_stack(stack: Stack) -> None:
    own = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())
    embedded = spark_defaults(stack.spark.render_defaults())
    assert set(embedded) - set(own) == SPARK_LEFT_OUT
    assert set(own) - set(embedded) == SPARK_ADDED
    agreeing = set(own) & set(embedded) - SPARK_DIFFERS
    assert {k: own[k] for k in agreeing} == {k: embedded[k] for k in agreeing}
    assert "spark.sql.extensions" in agreeing


def test_spark_runs_with_the_same_java_options(stack: Stack) -> None:
    option = "spark.driver.extraJavaOptions"
    own = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())[option]
    embedded = spark_defaults(stack.spark.render_defaults())[option]
    # The embedded one keeps its temporary files in its own folder; a container has its own /tmp.
    assert [word for word in embedded.split() if "java.io.tmpdir" not in word] == own.split()


def test_spark_finds_its_master_and_its_jars() -> None:
    defaults = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())
    worker, master = SERVICES["spark-worker"]["command"], SERVICES["spark-master"]["command"]
    host, port = (master[master.index(option) + 1] for option in ("--host", "--port"))
    assert worker[-1] == defaults["spark.master"] == f"spark://{host}:{port}"
    assert host in SERVICES
    cache = re.search(r"MORAINE_STACK__CACHE=(\S+)", DOCKERFILE)
    assert cache
    listed = jars.Jars.pinned(Path(cache[1])).class_path("spark")
    for side in ("driver", "executor"):
        assert defaults[f"spark.{side}.extraClassPath"] == ":".join(map(str, listed))


def test_spark_and_airflow_run_the_same_image_and_share_the_workspace() -> None:
    settings = tomllib.loads((ROOT / "docker/moraine.toml").read_text())
    workspace = f"workspace:{settings['workspace'].removeprefix('file://')}"
    for name in ("spark-master", "spark-worker", "spark-connect", "airflow-init", *COMPONENT_NAMES):
        assert SERVICES[name]["image"] == SERVICES["scheduler"]["image"]
        assert SERVICES[name]["build"] == "."
    for name in ("spark-worker", "spark-connect", "scheduler"):
        assert workspace in SERVICES[name]["volumes"]


# --- Settings and catalog -------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("MORAINE_CONFIG", str(ROOT / "docker/moraine.toml"))
    for name, value in environment_of("scheduler").items():
        if name.startswith("MORAINE_") and name != "MORAINE_CONFIG":
            monkeypatch.setenv(name, filled_in(value))
    get_settings.cache_clear()
    yield get_settings()
    get_settings.cache_clear()


def test_settings_are_valid_and_name_services_that_exist(settings: Settings) -> None:
    urls = [settings.airflow.url, settings.catalogs["demo"].uri]
    assert [re.split(r"[:/]+", url)[1] for url in urls] == ["api-server", "polaris"]
    assert "@postgres:5432/moraine" in settings.ledger.url.get_secret_value()
    written = (ROOT / "docker/moraine.toml").read_text()
    keys = re.findall(r"^([\w.-]+) *=", written, re.M)
    assert [key for key in keys if is_secret_name(key)] == []


def test_polaris_serves_the_realm_and_the_catalog_of_the_settings(settings: Settings) -> None:
    polaris = environment_of("polaris")
    assert polaris["POLARIS_REALM_CONTEXT_REALMS"] == settings.realm
    assert polaris["POLARIS_BOOTSTRAP_CREDENTIALS"].split(",")[0] == settings.realm
    script = SERVICES["polaris-init"]["command"][0]
    assert re.findall(r"--realm=(\w+) --credential=\"(\w+),", script) == [
        (settings.realm, settings.realm)
    ]
    catalog = settings.catalogs["demo"]
    made = (ROOT / "docker/create_catalog.py").read_text()
    assert f'NAME = "{catalog.warehouse}"' in made
    defaults = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())
    assert defaults["spark.sql.catalog.demo.uri"] == catalog.uri
    assert defaults["spark.sql.catalog.demo.warehouse"] == catalog.warehouse


# --- Versions and the image -----------------------------------------------------------------


def test_image_has_the_versions_of_the_requirements() -> None:
    required, locked = pins("requirements.txt"), pins("requirements.lock")
    assert {name: locked[name] for name in required} == required
    assert dockerfile_argument("AIRFLOW_VERSION") == required["apache-airflow"]
    assert dockerfile_argument("JAVA_VERSION") == str(java.VERSION)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].startswith(f">={dockerfile_argument('PYTHON_VERSION')},")
    assert SERVICES["scheduler"]["image"] == f"moraine:{project['version']}"
    assert "FROM apache/airflow:slim-${AIRFLOW_VERSION}-python${PYTHON_VERSION}" in DOCKERFILE
    assert "pip install --no-cache-dir -r requirements.txt -c requirements.lock" in DOCKERFILE


def test_spark_is_one_version_everywhere() -> None:
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


def test_commands_of_the_image_exist() -> None:
    known = typer.main.get_command(cli.app)
    script = "\n".join([DOCKERFILE, *SERVICES["airflow-init"]["command"]])
    called = re.findall(r"(?:^|&& )\s*moraine ([a-z ]+)$", script, re.M)
    assert sorted(called) == ["ledger upgrade", "setup"]
    for words in called:
        command: Any = known
        for word in words.split():
            command = command.commands[word]
