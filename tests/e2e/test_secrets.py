"""No secret of a caller or of the platform is written where it does not belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psycopg
from psycopg import sql

from support.platform import Platform

PLANTED = "planted-s3cr3t-7b1f9c4e"


def rows_of(url: str) -> Iterator[tuple[str, str]]:
    """Every row of every table of a database, as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert tables
        for name in tables:
            query = sql.SQL("SELECT given::text FROM {} AS given").format(sql.Identifier(*name))
            for (row,) in connection.execute(query):
                yield ".".join(name), row


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_text(errors="replace")


def test_secrets_of_payloads_and_of_the_platform_are_nowhere(platform: Platform) -> None:
    table = platform.write_table()
    config = {
        "s3.access-key-id": f"{PLANTED}-id",
        "s3.secret-access-key": PLANTED,
        "token": f"Bearer {PLANTED}",
        "nested": {"credential": [PLANTED]},
    }
    platform.execute(table, config=config)
    broken = platform.payload(platform.new_table(), config=config)
    platform.post(broken)
    del broken["operation_parameters"]["table_identity"]["table_name"]
    platform.post(broken)

    own = {k: v for k, v in asdict(platform.stack.vault).items() if k != "spark_session"}
    secrets = {"planted": PLANTED, **own}
    seen = 0
    found = []
    stack = platform.stack
    for source in (
        rows_of(stack.postgres.ledger_url),
        rows_of(stack.postgres.airflow_url),
        texts_of(stack.home / "logs"),
        texts_of(stack.home / "airflow" / "logs"),
        texts_of(stack.home / "workspace"),
    ):
        for place, text in source:
            seen += 1
            found += [(name, place) for name, secret in secrets.items() if secret in text]
    assert found == []
    assert seen > 100


def test_secrets_files_of_the_platform_are_private(platform: Platform) -> None:
    secrets = [v for k, v in asdict(platform.stack.vault).items() if k != "spark_session"]
    for path in platform.stack.home.rglob("*"):
        if (
            path.is_file()
            and platform.warehouse not in path.parents
            and "postgres" not in str(path)
        ):
            text = path.read_text(errors="replace")
            if any(secret in text for secret in secrets):
                assert path.stat().st_mode & 0o077 == 0, path
