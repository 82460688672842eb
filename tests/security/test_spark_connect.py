"""A neighbour on the machine or the network who finds the port of the Spark Connect server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.core import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy

from moraine.local.home import Vault
from moraine.local.spark import TOKEN_VARIABLE
from moraine.local.stack import PROJECT, Stack
from moraine.spark.session import connect, with_plain_token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yaml").read_text())
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which only Spark and the catalog run."""
    with Stack.ephemeral(tmp_path_factory.mktemp("spark")) as stack:
        stack.up({"spark"})
        yield stack


@pytest.fixture(scope="module")
def session(stack: Stack) -> Iterator[SparkSession]:
    session = connect(stack.spark.session_url)
    yield session
    session.stop()


def ask(url: str) -> str:
    """The server's version, as any PySpark client asks for it; or the error."""
    client = SparkConnectClient(url)
    client.set_retry_policies([DefaultPolicy(max_retries=0)])
    try:
        return str(client._analyze(method="spark_version").spark_version)
    except (PySparkException, grpc.RpcError) as error:
        return str(error)
    finally:
        client._channel.close()


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param("", id="nothing"),
        pytest.param("authorization=Bearer%20", id="an empty token"),
        pytest.param("authorization=Bearer%20moraine", id="a guessed token"),
        pytest.param("authorization=Bearer%20{token}", id="all but the last letter of it"),
        pytest.param("user_id=moraine;session_id={session}", id="the session that Moraine uses"),
    ],
)
def test_code_cannot_be_run_in_spark_without_the_token(stack: Stack, parameters: str) -> None:
    vault = stack.vault
    known = parameters.format(token=vault.spark_token[:-1], session=vault.spark_session)
    said = ask(f"{stack.spark.url}/;{known}" if known else stack.spark.url)
    assert "authentication token" in said.lower() or "UNAUTHENTICATED" in said, said


def test_moraine_runs_python_with_the_token(session: SparkSession) -> None:
    frame = session.range(3).mapInArrow(lambda batches: batches, "id long")
    assert sorted(row["id"] for row in frame.collect()) == [0, 1, 2]


def test_the_token_is_in_no_file_that_others_can_read(stack: Stack, session: SparkSession) -> None:
    del session
    token = stack.vault.spark_token.encode()
    holding = [
        path
        for path in stack.home.rglob("*")
        if path.is_file() and path.stat().st_mode & 0o077 and token in path.read_bytes()
    ]
    assert holding == []
    assert all(stack.vault.spark_token not in part.url for part in stack.status())


def test_neither_argument_of_the_server_names_the_token(stack: Stack) -> None:
    command = stack.spark.command()
    assert not [word for word in command.argv if stack.vault.spark_token in word]
    assert command.env[TOKEN_VARIABLE] == stack.vault.spark_token
    assert stack.vault.spark_token not in stack.spark.render_defaults()


def test_a_home_of_an_earlier_version_gets_a_token_that_lasts(tmp_path: Path) -> None:
    file = tmp_path / "secrets.json"
    known = vars(Vault.open(file))
    file.write_text(json.dumps({k: v for k, v in known.items() if k != "spark_token"}))
    first, second = Vault.open(file), Vault.open(file)
    assert first.spark_token == second.spark_token != known["spark_token"]
    assert first.postgres == known["postgres"]
    assert file.stat().st_mode & 0o077 == 0


def test_a_token_is_sent_in_the_clear_only_where_the_operator_says_so() -> None:
    """PySpark's own rule is TLS, except to `localhost`."""
    said = DefaultChannelBuilder(with_plain_token("sc://spark:15002/;token=t;use_ssl=False"))
    assert not said.secure
    assert ("authorization", "Bearer t") in list(said.metadata())
    for url in ("sc://spark:15002/;token=t", "sc://spark:15002/;token=t;use_ssl=true"):
        assert with_plain_token(url) == url
        assert DefaultChannelBuilder(url).secure


def test_no_session_of_spark_is_named_in_the_repository() -> None:
    files = ["docker-compose.yaml", ".env.example", "docker/spark/spark-defaults.conf"]
    assert [found for file in files for found in UUID.findall((PROJECT / file).read_text())] == []


def test_containers_ask_for_the_token_and_publish_no_port_for_it() -> None:
    server = COMPOSE["services"]["spark-connect"]
    assert server["environment"][TOKEN_VARIABLE] == "${SPARK_CONNECT_TOKEN:?set it in .env}"
    assert not [port for port in server["ports"] if "15002" in str(port)]
    connection = json.loads(COMPOSE["x-airflow"]["environment"]["AIRFLOW_CONN_MORAINE_SPARK"])
    assert connection["password"] == server["environment"][TOKEN_VARIABLE]
    assert connection["extra"]["session_id"] == "${SPARK_SESSION_ID:?set it in .env}"
