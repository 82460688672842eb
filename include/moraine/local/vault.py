"""The stack's generated secrets: made once per home, kept in one file that only its owner reads."""

from __future__ import annotations

import base64
import json
import os
import secrets
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from moraine.local.errors import StackError


def _password() -> str:
    # URL-safe, so that no connection string has to quote it.
    return secrets.token_urlsafe(24)


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, repr=False)
class Vault:
    postgres: str = field(default_factory=_password)
    ledger: str = field(default_factory=_password)
    airflow_database: str = field(default_factory=_password)
    airflow_admin: str = field(default_factory=_password)
    airflow_jwt: str = field(default_factory=lambda: secrets.token_urlsafe(64))
    airflow_secret: str = field(default_factory=_password)
    airflow_fernet: str = field(default_factory=_fernet_key)
    supervisor: str = field(default_factory=_password)
    spark_session: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Not a secret, but as old as the home: all clients share this Spark session."""

    @classmethod
    def open(cls, path: Path) -> Vault:
        """Read the secrets, or make them. Called under the stack's lock."""
        if path.exists():
            try:
                return cls(**json.loads(path.read_text()))
            except (ValueError, TypeError) as error:
                raise StackError(
                    f"{path} is damaged: restore it, or remove {path.parent} to start afresh."
                ) from error
        vault = cls()
        write_private(path, json.dumps(asdict(vault), indent=2))
        return vault


def write_private(path: Path, text: str) -> None:
    """Write a file whole or not at all, readable by its owner only from its first byte."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
