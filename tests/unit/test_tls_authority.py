"""`moraine tls init`: a private CA and certificates that work."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from typer.testing import CliRunner

from moraine.cli import app
from moraine.errors import MoraineError

LEAVES = {"server", "postgres", "moraine", "polaris"}


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["tls", "init", *arguments])
    if isinstance(done.exception, MoraineError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def load(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_it_makes_a_ca_and_certificates_of_it(tmp_path: Path) -> None:
    shown = run("--dir", str(tmp_path / "tls"), "--host", "moraine.example", "--host", "10.1.2.3")
    folder = tmp_path / "tls"
    assert {path.stem for path in folder.glob("*.crt")} == LEAVES | {"ca"}
    assert "server.key" in shown
    policy = PolicyBuilder().store(Store([load(folder, "ca")]))
    for name in ("server", "postgres"):
        for host in ("moraine.example", "localhost"):
            policy.build_server_verifier(x509.DNSName(host)).verify(load(folder, name), [])
    for name in ("moraine", "polaris"):
        policy.build_client_verifier().verify(load(folder, name), [])


def test_keys_are_private_whatever_the_umask(tmp_path: Path) -> None:
    run("--dir", str(tmp_path))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert {mode for name, mode in modes.items() if name.endswith(".crt")} == {0o644}


def test_it_does_not_overwrite(tmp_path: Path) -> None:
    run("--dir", str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(MoraineError, match="--renew"):
        run("--dir", str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_renewal_keeps_the_ca_and_the_names(tmp_path: Path) -> None:
    run("--dir", str(tmp_path), "--host", "moraine.example")
    before = {name: load(tmp_path, name) for name in LEAVES | {"ca"}}
    run("--dir", str(tmp_path), "--renew", "--host", "new.example")
    assert load(tmp_path, "ca") == before["ca"]
    policy = PolicyBuilder().store(Store([load(tmp_path, "ca")]))
    for name in LEAVES:
        assert load(tmp_path, name).serial_number != before[name].serial_number
        assert load(tmp_path, name).subject == before[name].subject
    for host in ("moraine.example", "new.example"):
        policy.build_server_verifier(x509.DNSName(host)).verify(load(tmp_path, "server"), [])
    policy.build_client_verifier().verify(load(tmp_path, "moraine"), [])


def test_there_must_be_a_ca_to_renew_with(tmp_path: Path) -> None:
    with pytest.raises(MoraineError, match="tls init"):
        run("--dir", str(tmp_path), "--renew")
