"""The ledger's schema, as Alembic migrations."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config


def upgrade(ledger_url: str, revision: str = "head") -> None:
    """Bring the ledger at `ledger_url` to the newest schema. Two at once are harmless."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["ledger_url"] = ledger_url
    command.upgrade(config, revision)
