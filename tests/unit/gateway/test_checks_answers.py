"""What is answered to a request that the catalog shows to be carried out."""

from __future__ import annotations

from typing import Any

import pytest

from moraine.gateway.checks import answer_of, check
from moraine.gateway.model import Verdict
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import Identifier
from support.iceberg_bodies import (
    ASKED_VIEW,
    CREATE_SIMPLE,
    FILE,
    KEEP_OWNER,
    NAMESPACE,
    ROOT,
    TABLE,
    VIEW,
    loaded,
    table_metadata,
    view_metadata,
)
from support.intents import intent

Json = dict[str, Any]

LOADED_TABLE = {
    **loaded(table_metadata(), FILE),
    "storage-credentials": [{"prefix": "s3://lake", "config": {}}],
    "etag-of-the-load": "x",
}
LOADED_VIEW = {**loaded(view_metadata(), FILE), "etag-of-the-load": "x"}
RENAME = {
    "source": {"namespace": ["sales"], "name": "orders"},
    "destination": {"namespace": ["archive"], "name": "orders"},
}
COMMITTED = {"metadata-location", "metadata"}
REGISTRATION = {"name": "orders", "metadata-location": FILE}
VIEW_REGISTRATION = {"name": "totals", "metadata-location": FILE}
COMMIT = {"updates": [KEEP_OWNER]}


@pytest.mark.parametrize(
    ("endpoint", "target", "body", "fields"),
    [
        (
            Endpoint.CREATE_TABLE,
            NAMESPACE,
            CREATE_SIMPLE,
            {*COMMITTED, "config", "storage-credentials"},
        ),
        (
            Endpoint.REGISTER_TABLE,
            NAMESPACE,
            REGISTRATION,
            {*COMMITTED, "config", "storage-credentials"},
        ),
        (Endpoint.COMMIT_TABLE, TABLE, COMMIT, COMMITTED),
        (Endpoint.CREATE_VIEW, NAMESPACE, ASKED_VIEW, {*COMMITTED, "config"}),
        (Endpoint.REGISTER_VIEW, NAMESPACE, VIEW_REGISTRATION, {*COMMITTED, "config"}),
        (Endpoint.REPLACE_VIEW, VIEW, COMMIT, {*COMMITTED, "config"}),
    ],
)
def test_the_answer_is_what_the_catalog_loads(
    endpoint: Endpoint, target: Identifier, body: Json, fields: set[str]
) -> None:
    made = intent(endpoint, target, body)
    present = LOADED_VIEW if made.targets == (VIEW,) else LOADED_TABLE
    state = {made.targets[0]: present}
    assert check(made, state) is Verdict.APPLIED

    answer = answer_of(made, state)

    assert answer.status == 200
    assert answer.body == {name: present[name] for name in fields}


def test_a_load_without_credentials_makes_an_answer_without() -> None:
    made = intent(Endpoint.CREATE_TABLE, NAMESPACE, CREATE_SIMPLE)
    present = {"metadata-location": FILE, "metadata": table_metadata()}

    assert answer_of(made, {TABLE: present}).body == present


def test_the_answers_about_namespaces() -> None:
    present = {"namespace": ["sales"], "properties": {"owner": "bo", "location": "s3://x"}}
    create = intent(Endpoint.CREATE_NAMESPACE, ROOT, {"namespace": ["sales"]})
    changes = {"updates": {"owner": "bo"}, "removals": ["old", "older"]}
    update = intent(Endpoint.UPDATE_NAMESPACE, NAMESPACE, changes)

    created, updated = (answer_of(made, {NAMESPACE: present}) for made in (create, update))

    assert (created.status, created.body) == (200, present)
    assert (updated.status, updated.body) == (
        200,
        {"updated": ["owner"], "removed": ["old", "older"], "missing": []},
    )


@pytest.mark.parametrize(
    ("endpoint", "target", "body"),
    [
        (Endpoint.DROP_TABLE, TABLE, {}),
        (Endpoint.DROP_VIEW, VIEW, {}),
        (Endpoint.DROP_NAMESPACE, NAMESPACE, {}),
        (Endpoint.RENAME_TABLE, ROOT, RENAME),
        (Endpoint.RENAME_VIEW, ROOT, RENAME),
        (
            Endpoint.COMMIT_TRANSACTION,
            ROOT,
            {"table-changes": [{"identifier": {"namespace": ["n"], "name": "t"}, "updates": []}]},
        ),
    ],
)
def test_the_answer_to_what_leaves_nothing_to_show(
    endpoint: Endpoint, target: Identifier, body: Json
) -> None:
    made = intent(endpoint, target, body)

    answer = answer_of(made, dict.fromkeys(made.targets))

    assert (answer.status, answer.body) == (204, None)


def test_there_is_no_answer_without_what_it_shows() -> None:
    made = intent(Endpoint.CREATE_TABLE, NAMESPACE, CREATE_SIMPLE)

    with pytest.raises(LookupError, match=r"sales\.orders does not exist"):
        answer_of(made, {TABLE: None})
