"""Alembic's entry point: one connection, one transaction, one migration at a time."""

from alembic import context
from sqlalchemy import create_engine, make_url, text

# Any number that nothing else in the ledger's database locks on.
_MIGRATION_LOCK = 0x6D6F7261


def run() -> None:
    url = make_url(context.config.attributes["ledger_url"]).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        context.configure(connection=connection, version_table="moraine_schema_version")
        context.run_migrations()
    engine.dispose()


run()
