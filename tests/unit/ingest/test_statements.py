"""Statements of ingest can be pasted into psql, and say what they do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from moraine.ingest import store
from moraine.ledger.queries import load_queries


@pytest.mark.parametrize("package", ["moraine.ingest", "moraine.ingest.filedrop"])
def test_statements_are_whole_and_described(package: str) -> None:
    statements = load_queries(package)
    assert statements
    for name, statement in statements.items():
        assert statement.startswith(b"-- "), f"{name} has no description"
        assert b"{" not in statement, f"{name} is not complete"


def test_statements_announce_on_the_channels_that_are_listened_to() -> None:
    text = files("moraine.ingest").joinpath("queries.sql").read_text()
    assert set(re.findall(r"pg_notify\('(\w+)'", text)) == {store.STAGED, store.SETTLED}
    assert f"application_name = '{store.WRITER}'" in text
