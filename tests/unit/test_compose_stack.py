"""The Compose file describes the platform that the embedded stack runs."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

from moraine.local import jars, spark
from moraine.local.airflow import COMPONENTS, ApiServer
from moraine.local.home import Vault
from moraine.local.part import StackError
from moraine.local.stack import Stack
from moraine.orchestration import connections
from moraine.settings import PortSettings, StackSettings
from moraine.settings.properties import flatten
from support.compose import (
    COMPONENT_NAMES,
    DOCKERFILE,
    ROOT,
    SERVICES,
    environment_of,
    filled_in,
    mounts_of,
    spark_defaults,
)

# What a container cannot share with a process on the same machine, and why.
AIRFLOW_DIFFERS = {
    # paths
    "AIRFLOW__CORE__DAGS_FOLDER",
    "AIRFLOW__CORE__PLUGINS_FOLDER",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER",
    "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY",
    "AIRFLOW__API__SSL_CA_FILE",
    "AIRFLOW__API__SSL_CERT",
    "AIRFLOW__API__SSL_KEY",
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
# Variables of the embedded processes that containers do without.
LEFT_OUT = {
    "AIRFLOW_HOME",  # the image's own
    "AIRFLOW__CORE__HOSTNAME_CALLABLE",  # a container's own name is right
    "MORAINE_STACK__HOME",  # there is no embedded stack
    "PYSPARK_DRIVER_PYTHON",  # drivers run in the JVM of Spark, or are Python already
    "SPARK_HOME",  # the scripts of PySpark find it
    "SPARK_LOCAL_IP",  # a container's own address is right
    "SPT_NOENV",  # no process is looked for by a mark
}
# And those that containers have beyond them.
ADDED = {
    # Polaris wants to know who asks, and vends no keys; the embedded catalog has local files.
    "MORAINE_CATALOGS__DEMO__AUTH__CLIENT_ID",
    "MORAINE_CATALOGS__DEMO__AUTH__CLIENT_SECRET",
    "MORAINE_CATALOGS__DEMO__STORAGE",
    # What listens on a container's loopback interface cannot be published.
    "MORAINE_INGEST__OTLP__HOST",
}
# A container has no folder that people drop files into; a bucket would need a connection.
SETTINGS_LEFT_OUT = {
    "ingest.filedrop.prefixes.drop.location",
    "ingest.filedrop.prefixes.drop.settle",
}
# The service of each process, by the name of its part.
SERVICE_OF = {"spark": "spark-connect", **{name: name for name in COMPONENT_NAMES}}
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
    stack = Stack(StackSettings(home=Path("/nowhere"), tls=True))
    stack.__dict__["vault"] = Vault()
    stack.airflow.extra = stack.environment()  # as `up` does
    return stack


def image_variables() -> dict[str, str]:
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.M)
    assert block
    return dict(re.findall(r"(\w+)=(\S+)", block[1]))


def conf_options(argv: list[str]) -> dict[str, str]:
    options = [argv[n + 1] for n, word in enumerate(argv) if word == "--conf"]
    return dict(option.split("=", 1) for option in options)


def test_compose_airflow_components_are_those_of_the_stack(stack: Stack) -> None:
    for component in COMPONENTS:
        argv = component(stack.airflow).command().argv
        assert argv[1:3] == ("-m", "airflow")
        assert SERVICES[component.name]["command"] == list(argv[3:])
        assert "entrypoint" not in SERVICES[component.name]


def test_compose_health_checks_are_those_of_the_stack() -> None:
    for component in COMPONENTS:
        check = SERVICES[component.name]["healthcheck"]["test"]
        if component is ApiServer:
            path = check[-1].removeprefix("https://localhost:8080")
            assert path in inspect.getsource(ApiServer.probe)
        else:
            assert check[check.index("--job-type") + 1] == component.job_type  # type: ignore[attr-defined]


@pytest.mark.parametrize("part", SERVICE_OF)
def test_compose_processes_have_the_variables_of_the_stack(stack: Stack, part: str) -> None:
    embedded = set(stack.parts[part].command().env)
    own = set(environment_of(SERVICE_OF[part]))
    assert embedded - own - set(image_variables()) - LEFT_OUT == set()
    assert own - embedded == (ADDED if part in COMPONENT_NAMES else set())


@pytest.mark.parametrize("service", [*COMPONENT_NAMES, "airflow-init"])
def test_compose_airflow_is_configured_as_in_the_stack(stack: Stack, service: str) -> None:
    own = {k: v for k, v in environment_of(service).items() if k.startswith("AIRFLOW__")}
    embedded = {k: v for k, v in stack.airflow.variables().items() if k.startswith("AIRFLOW__")}
    assert set(embedded) - set(own) <= LEFT_OUT
    assert set(own) - set(embedded) == set()
    agreeing = set(own) - AIRFLOW_DIFFERS
    assert {k: own[k] for k in agreeing} == {k: embedded[k] for k in agreeing}
    assert {k for k in AIRFLOW_DIFFERS if filled_in(own[k]) == embedded[k]} == set()


@pytest.mark.parametrize("service", COMPONENT_NAMES)
def test_compose_connections_are_those_that_dags_use(stack: Stack, service: str) -> None:
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
    assert set(own) == set(embedded) == {connections.LEDGER, connections.SPARK, connections.AIRFLOW}
    for name in embedded:
        connection = own[name]
        for field in ("conn_type", "login", "schema"):
            assert connection.get(field) == embedded[name].get(field), f"{name}: {field}"
        assert ("password" in connection) == ("password" in embedded[name])
        assert connection.get("extra", {}).keys() == embedded[name].get("extra", {}).keys()
        assert connection["host"] in SERVICES
    assert own[connections.SPARK]["port"] == embedded[connections.SPARK]["port"]
    assert own[connections.AIRFLOW]["port"] == embedded[connections.AIRFLOW]["port"]


def test_compose_moraine_has_the_settings_of_the_stack(stack: Stack) -> None:
    written = tomllib.loads((ROOT / "docker/moraine.toml").read_text())
    own = {name for name, _ in flatten(written)}
    embedded = {name for name, _ in flatten(stack.own_settings())}
    given = {"airflow.url", "airflow.username"}  # by variables
    assert {f"MORAINE_{name.replace('.', '__').upper()}" for name in given} <= set(
        environment_of("scheduler")
    )
    assert embedded - own - given == SETTINGS_LEFT_OUT


def test_compose_services_that_are_published_listen_on_every_interface() -> None:
    environment = environment_of("api-server")
    hosts = {name: value for name, value in environment.items() if name.endswith("__HOST")}
    assert hosts == {"AIRFLOW__API__HOST": "0.0.0.0", "MORAINE_INGEST__OTLP__HOST": "0.0.0.0"}


def test_compose_ports_are_those_of_the_stack() -> None:
    ports = PortSettings()
    expected = {
        "postgres": {ports.postgres},
        "polaris": {ports.catalog},
        "spark-connect": {ports.spark_ui},
        "api-server": {ports.airflow, ports.otlp},
        "moraine-api": {ports.api},
    }
    published = {
        name: {int(port.split(":")[1]) for port in service["ports"]}
        for name, service in SERVICES.items()
        if "ports" in service
    }
    assert published == expected


def test_compose_connect_server_is_started_as_in_the_stack(stack: Stack) -> None:
    embedded = list(stack.spark.command().argv)
    service = SERVICES["spark-connect"]
    assert service["entrypoint"] == [Path(embedded[0]).name]
    own = service["command"]
    assert own[:4] == embedded[1:5]  # --class CLASS --name NAME
    assert own[-1] == embedded[-1]
    options = conf_options(own)
    address = {"spark.driver.host": "spark-connect", "spark.driver.bindAddress": "0.0.0.0"}
    assert options == conf_options(embedded) | address


def test_compose_spark_is_configured_as_in_the_stack(stack: Stack) -> None:
    own = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())
    embedded = spark_defaults(stack.spark.render_defaults())
    assert set(embedded) - set(own) == SPARK_LEFT_OUT
    assert set(own) - set(embedded) == SPARK_ADDED
    agreeing = set(own) & set(embedded) - SPARK_DIFFERS
    assert {k: own[k] for k in agreeing} == {k: embedded[k] for k in agreeing}
    assert "spark.sql.extensions" in agreeing


def test_compose_spark_runs_with_the_java_options_of_the_stack(stack: Stack) -> None:
    option = "spark.driver.extraJavaOptions"
    own = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())[option]
    embedded = spark_defaults(stack.spark.render_defaults())[option]
    # The embedded one keeps its temporary files in its own folder; a container has its own /tmp.
    assert [word for word in embedded.split() if "java.io.tmpdir" not in word] == own.split()


def test_compose_spark_finds_its_master_and_its_jars() -> None:
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


def test_compose_spark_and_airflow_run_the_same_image_and_share_the_workspace() -> None:
    settings = tomllib.loads((ROOT / "docker/moraine.toml").read_text())
    workspace = settings["workspace"].removeprefix("file://")
    for name in ("spark-master", "spark-worker", "spark-connect", "airflow-init", *COMPONENT_NAMES):
        assert SERVICES[name]["image"] == SERVICES["scheduler"]["image"]
        assert SERVICES[name]["build"] == "."
    # As the embedded processes do. Bodies that the API has taken lie there, for one.
    for name in ("spark-worker", *SERVICE_OF.values()):
        assert mounts_of(name)[workspace] == "workspace", name


def test_compose_folders_of_airflow_are_shared_as_in_the_stack() -> None:
    """The embedded components have one home."""
    for name in (*COMPONENT_NAMES, "airflow-init"):
        environment = environment_of(name)
        passwords = Path(environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
        logs = environment["AIRFLOW__LOGGING__BASE_LOG_FOLDER"]
        mounts = mounts_of(name)
        assert (mounts[logs], mounts[str(passwords.parent)]) == ("logs", "auth"), name
