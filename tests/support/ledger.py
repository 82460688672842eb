"""Ledgers for tests, and all that is in one."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from moraine.local.stack import Stack


@contextmanager
def new_ledger(postgres: Stack) -> Iterator[str]:
    """A ledger with the newest schema and nothing in it: a copy of the stack's own, unused one."""
    template = postgres.environment()["MORAINE_LEDGER__URL"]
    server, _, original = template.rpartition("/")
    name = f"ledger_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "original": sql.Identifier(original)}
    with psycopg.connect(postgres.postgres.admin_url, autocommit=True) as admin:
        create = "CREATE DATABASE {name} TEMPLATE {original} OWNER {original}"
        admin.execute(sql.SQL(create).format(**names))
        yield f"{server}/{name}"
        admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))


def everything_in(ledger_url: str, *, but: tuple[str, ...] = ()) -> str:
    """Every row of every table, as text; `but` are tables that do not count."""
    with psycopg.connect(ledger_url) as connection:
        tables = connection.execute(
            "select schemaname, tablename from pg_tables"
            " where schemaname = 'public' and tablename <> all(%s) order by tablename",
            [list(but)],
        ).fetchall()
        query = sql.SQL("select t::text, t.* from {} as t order by 1")
        return "\n".join(
            f"{table[1]}: {row[0]}{''.join(map(_bytes_as_text, row[1:]))}"
            for table in tables
            for row in connection.execute(query.format(sql.Identifier(*table))).fetchall()
        )


def _bytes_as_text(value: object) -> str:
    """What text would show as hexadecimal digits. Kept answers are compressed."""
    if not isinstance(value, bytes):
        return ""
    with contextlib.suppress(zlib.error):
        value = zlib.decompress(value)
    return f" {value.decode('latin-1')}"
