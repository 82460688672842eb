"""What the role of Spark's executors may do in the ledger: ask the fence, and report slices.

Executors run on machines that read foreign files, and get the ledger's address with their work. So
they get a role of their own that reads no payload, key or history, and changes no task.
"""

from __future__ import annotations

from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from moraine.errors import FinalError

# The columns of the statements in tasks/slices.sql, and no others.
_STATEMENTS: tuple[LiteralString, ...] = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role}",
    "REVOKE CREATE ON SCHEMA {schema} FROM {role}",
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "GRANT SELECT (task_id, version, status, lease_expires_ts, cancel_requested_ts) ON tasks"
    " TO {role}",
    # All columns: a system column such as xmax cannot be granted alone.
    "GRANT SELECT ON task_slices TO {role}",
    "GRANT INSERT (task_id, stage, slice, version) ON task_slices TO {role}",
    "GRANT UPDATE (version, files_done, files_missing, bytes_done, seconds, finished)"
    " ON task_slices TO {role}",
)


class NoSuchRole(FinalError):
    """PostgreSQL has no role of this name that executors could use."""


def role_of(executor_url: str) -> str:
    """The role that a URL logs in as; empty if it names none."""
    return str(conninfo_to_dict(executor_url).get("user") or "") if executor_url else ""


def grant_executor(ledger_url: str, role: str) -> None:
    """Let a role do the work of executors and nothing else in the ledger. Idempotent.

    It runs after every upgrade, as the owner of the tables. Roles belong to the whole server, so
    this does not create one: that takes rights which the owner of a database need not have.
    """
    with psycopg.connect(ledger_url, application_name="moraine", connect_timeout=5) as connection:
        _require_another_role(connection, role)
        [schema] = connection.execute("SELECT current_schema()").fetchone() or [""]
        names = {"role": sql.Identifier(role), "schema": sql.Identifier(schema)}
        for statement in _STATEMENTS:
            connection.execute(sql.SQL(statement).format(**names))


def _require_another_role(connection: psycopg.Connection, role: str) -> None:
    found = connection.execute(
        "SELECT rolsuper OR rolbypassrls OR pg_has_role(rolname, current_user, 'MEMBER')"
        " FROM pg_roles WHERE rolname = %s",
        [role],
    ).fetchone()
    if found is None:
        raise NoSuchRole(
            f"PostgreSQL has no role {role!r}: create it with LOGIN and a password, then run "
            "`moraine ledger upgrade` again."
        )
    if found[0]:
        raise NoSuchRole(
            f"The role {role!r} owns the ledger or has all rights: executors need one of their own."
        )
