"""The files in a stack's home: its secrets, and what other processes find a running stack by."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moraine.local.part import StackError
from moraine.tls.files import write_private

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def _password() -> str:
    # URL-safe, so that no connection string has to quote it.
    return secrets.token_urlsafe(24)


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, repr=False)
class Vault:
    """The stack's generated secrets: made once per home, in one file that only its owner reads."""

    postgres: str = field(default_factory=_password)
    ledger: str = field(default_factory=_password)
    ledger_executor: str = field(default_factory=_password)
    airflow_database: str = field(default_factory=_password)
    airflow_admin: str = field(default_factory=_password)
    airflow_jwt: str = field(default_factory=lambda: secrets.token_urlsafe(64))
    airflow_secret: str = field(default_factory=_password)
    airflow_fernet: str = field(default_factory=_fernet_key)
    supervisor: str = field(default_factory=_password)
    spark_token: str = field(default_factory=_password)
    spark_session: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Not a secret, but as lasting as one: all clients share this Spark session."""

    @classmethod
    def open(cls, path: Path) -> Vault:
        """Read the secrets, or make them. Called under the stack's lock."""
        known: dict[str, str] = {}
        try:
            known = json.loads(path.read_text()) if path.exists() else {}
            vault = cls(**known)
        except (ValueError, TypeError) as error:
            raise StackError(
                f"{path} is damaged: restore it, or remove {path.parent} to start over."
            ) from error
        if asdict(vault) != known:  # a version of Moraine may need more of them
            write_private(path, json.dumps(asdict(vault), indent=2))
        return vault


def file_uri(path: Path) -> str:
    """Without percent-encoding: Hadoop and Moraine take the path literally."""
    return f"file://{path}"


def render_settings(own: Mapping[str, Any], beneath: Path | None = None) -> str:
    """The stack's `moraine.toml`: its own settings on top of the user's file."""
    given = tomllib.loads(beneath.read_text()) if beneath and beneath.exists() else {}
    header = "# Written by `moraine up`, which overwrites it each time. It holds no secrets.\n"
    return header + "".join(f"{line}\n" for line in _lines(merged(given, own)))


def render_environment(variables: Mapping[str, str]) -> str:
    """For a shell: `set -a; . .moraine/env`."""
    return "".join(f"{k}={shlex.quote(v)}\n" for k, v in sorted(variables.items()))


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping):
            result[key] = merged(under.get(key, {}), value)
        else:
            result[key] = value
    return result


def _lines(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys with JSON values; for every type of setting these are TOML too."""
    for key, value in values.items():
        bare = _BARE_KEY.fullmatch(key)
        name = prefix + (key if bare else json.dumps(key, ensure_ascii=False))
        if isinstance(value, Mapping):
            yield from _lines(value, f"{name}.")
        else:
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
