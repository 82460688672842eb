from __future__ import annotations

import json
import shlex
import socket
import stat
from pathlib import Path

import pytest

from moraine.local.home import Vault, file_uri, render_environment, render_settings
from moraine.local.part import Event, StackError, free_ports, require_free
from moraine.local.processes import tail
from moraine.local.stack import PROJECT, Stack
from moraine.local.supervisor import Supervisor
from moraine.settings import Settings, StackSettings

KNOWN = {"postgres", "catalog", "spark", "api-server", "scheduler", "dag-processor", "triggerer"}


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack.ephemeral(tmp_path / "my 100% home")


def test_stack_free_ports_are_all_different() -> None:
    ports = list(free_ports().model_dump().values())
    assert len(set(ports)) == len(ports)


def test_stack_names_a_port_in_use_with_the_setting_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StackError) as caught:
            require_free("spark", {"stack.ports.spark-ui": port})
    assert f"Port {port} for spark is in use" in str(caught.value)
    assert "stack.ports.spark-ui" in str(caught.value)
    assert "MORAINE_STACK__PORTS__SPARK_UI" in str(caught.value)


def test_stack_reports_a_full_disk_in_one_sentence(tmp_path: Path) -> None:
    stack = Stack.ephemeral(tmp_path, min_free_disk_gb=10**9)
    with pytest.raises(StackError, match=r"GB are free .* make room"):
        stack.up({"postgres"})
    assert not stack.is_running()


def test_stack_refuses_an_unknown_part_and_names_the_known_ones(stack: Stack) -> None:
    with pytest.raises(StackError, match=r"no part 'polaris'; the parts are postgres, catalog"):
        stack.up({"polaris"})


def test_stack_part_brings_the_parts_it_needs(stack: Stack) -> None:
    assert stack._with_needs({"dag-processor"}) == ["postgres", "dag-processor"]
    assert set(stack.parts) == KNOWN


def test_stack_with_tls_has_the_api_for_machines(tmp_path: Path) -> None:
    stack = Stack.ephemeral(tmp_path / "home", tls=True)
    assert set(stack.parts) == KNOWN | {"moraine-api"}
    assert stack.parts["api-server"].url.startswith("https://")
    assert (
        stack.environment()["MORAINE_LEDGER__URL"]
        .partition("?")[2]
        .startswith("sslmode=verify-full&sslrootcert=")
    )
    stack.certificates.prepare()
    settings = Settings.model_validate(
        {key: value for key, value in stack.own_settings().items() if key in ("ledger", "airflow")}
    )
    assert settings.airflow.tls.ca == settings.ledger.tls.ca == stack.certificates.ca
    listener = stack.own_settings()["api"]
    assert listener["tls"]["client-auth"] == "required"
    assert listener["port"] == stack.settings.ports.api


def test_stack_starts_the_scheduler_after_all_that_its_dags_use(stack: Stack) -> None:
    needed = ["postgres", "catalog", "spark", "api-server"]
    assert stack._with_needs({"scheduler"}) == [*needed, "scheduler"]


def test_stack_status_without_a_stack_creates_nothing(stack: Stack) -> None:
    assert {part.state for part in stack.status()} == {"stopped"}
    assert {part.name for part in stack.status()} == KNOWN
    stack.down()
    assert not stack.home.exists()


def test_stack_home_that_is_relative_is_below_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Stack(StackSettings()).home == PROJECT / ".moraine"


def test_stack_is_opened_with_the_ports_it_was_started_with(stack: Stack) -> None:
    stack.home.mkdir()
    stack._write_files()
    assert Stack.open(stack.home).settings == stack.settings


def test_stack_of_another_version_can_still_be_opened(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"ports": {"of-yore": 1}}')
    assert Stack.open(tmp_path).home == tmp_path


def test_stack_settings_file_is_valid_and_holds_no_secret(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.home.mkdir()
    stack._write_files()
    text = (stack.home / "moraine.toml").read_text()
    assert not [secret for secret in secrets_of(stack.vault) if secret in text]
    monkeypatch.setenv("MORAINE_CONFIG", str(stack.home / "moraine.toml"))
    settings = Settings()
    assert settings.catalogs["demo"].uri == stack.catalog.url
    assert settings.workspace == file_uri(stack.home / "workspace")
    assert settings.delegation.task.lease.lost_timeout_duration.total_seconds() == 30


def test_stack_settings_are_merged_over_the_users_own(tmp_path: Path) -> None:
    user = tmp_path / "moraine.toml"
    user.write_text('[delegation.retry.TABLE_PURGE]\nmax-attempts = 3\n[catalogs.mine]\nuri="x"\n')
    text = render_settings({"catalogs": {"demo": {"uri": "y"}}}, user)
    assert "delegation.retry.TABLE_PURGE.max-attempts = 3" in text
    assert 'catalogs.mine.uri = "x"' in text
    assert 'catalogs.demo.uri = "y"' in text


def test_stack_environment_file_survives_a_shell() -> None:
    text = render_environment({"A": "it's $5", "B": '{"x": "y z"}'})
    assert dict(word.split("=", 1) for word in shlex.split(text)) == {
        "A": "it's $5",
        "B": '{"x": "y z"}',
    }


def test_stack_private_files_are_private_and_secrets_are_kept(stack: Stack) -> None:
    stack.home.mkdir()
    stack._write_files()
    for name in ("secrets.json", "env"):
        assert stat.S_IMODE((stack.home / name).stat().st_mode) == 0o600
    assert Vault.open(stack.home / "secrets.json") == stack.vault
    assert stack.vault.postgres not in repr(stack.vault)


def test_stack_says_what_to_do_about_a_damaged_secrets_file(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(StackError, match="is damaged: restore it, or remove"):
        Vault.open(tmp_path / "secrets.json")


def test_stack_environment_has_only_loopback_addresses(stack: Stack) -> None:
    environment = stack.environment({"EXTRA": "1"})
    assert environment["EXTRA"] == "1"
    assert not [name for name, value in environment.items() if "0.0.0.0" in value]
    spark = json.loads(environment["AIRFLOW_CONN_MORAINE_SPARK"])
    assert (spark["host"], spark["port"]) == ("127.0.0.1", stack.settings.ports.spark)
    assert spark["extra"]["session_id"] in stack.spark.session_url
    url = environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    assert url == f"http://127.0.0.1:{stack.settings.ports.airflow}/execution/"


def test_stack_configures_spark_for_the_catalog_and_keeps_its_sessions(stack: Stack) -> None:
    options = dict(line.split(" ", 1) for line in stack.spark.render_defaults().splitlines())
    assert options["spark.sql.catalog.demo.uri"] == stack.catalog.url
    assert options["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert options["spark.connect.session.manager.defaultSessionTimeout"] == "-1"


def test_stack_supervisord_reads_its_configuration_as_meant(stack: Stack, tmp_path: Path) -> None:
    from supervisor.options import ServerOptions

    stack.home.mkdir()
    stack._write_files()
    config = tmp_path / "supervisord.conf"
    config.write_text(stack.supervisor.render_config(stack.parts.values()))
    options = ServerOptions()
    options.realize(["-c", str(config)], doc="")
    programs = {group.process_configs[0].name: group for group in options.process_group_configs}
    assert set(programs) == KNOWN
    postgres = programs["postgres"].process_configs[0]
    assert shlex.split(postgres.command)[-1] == str(stack.supervisor.spec("postgres"))
    assert not postgres.autostart


def test_stack_control_socket_has_a_short_path_wherever_the_home_is(tmp_path: Path) -> None:
    home = tmp_path / ("deep/" * 30)
    assert len(str(Supervisor(home, "secret").socket)) < 100


def test_stack_log_tail_shows_what_was_written_since(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n" + "".join(f"line {n}\n" for n in range(50)))
    assert tail(log, lines=2, start=4) == "line 48\nline 49"
    assert tail(log, lines=2, start=10**6) == "line 48\nline 49"
    assert tail(tmp_path / "none") == ""


def test_stack_error_details_are_in_its_traceback() -> None:
    assert StackError("It failed.", details="last line").__notes__ == ["last line"]
    assert Event("spark", "ready", ready=True).total is None


def secrets_of(vault: Vault) -> list[str]:
    return [value for name, value in vars(vault).items() if name != "spark_session"]
