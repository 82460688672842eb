"""What a look at the catalog says of a change whose answer was lost."""

from __future__ import annotations

from typing import Any

import pytest

from moraine.gateway.checks import check
from moraine.gateway.model import Verdict
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import Identifier, ObjectKind
from support.iceberg_bodies import (
    KEEP_OWNER,
    NAMESPACE,
    NEXT_VERSION,
    OTHER_UUID,
    ROOT,
    TABLE,
    TABLE_UUID,
    VERSION,
    VIEW,
    VIEW_UUID,
    loaded,
    table_metadata,
    view_metadata,
)
from support.intents import intent

Json = dict[str, Any]

APPLIED, NOT_APPLIED, INCOMPATIBLE = Verdict
MOVED_TABLE = Identifier(ObjectKind.TABLE, ("archive",), "orders")
MOVED_VIEW = Identifier(ObjectKind.VIEW, ("archive",), "totals")

# --- Commits --------------------------------------------------------------------------------

SET_OWNER = {"action": "set-properties", "updates": {"owner": "bo"}}
ADD_SNAPSHOT = {"action": "add-snapshot", "snapshot": {"snapshot-id": 12}}
ASSIGN_UUID = {"action": "assign-uuid", "uuid": TABLE_UUID}
ASSERT_CREATE = {"type": "assert-create"}
WITH_SNAPSHOT = table_metadata(snapshots=[{"snapshot-id": 11}, {"snapshot-id": 12}])
RECREATED = table_metadata(table_uuid=OTHER_UUID)


def check_commit(metadata: Json | None, updates: list[Json], *requirements: Json) -> Verdict:
    body = {"requirements": list(requirements), "updates": updates}
    state = {TABLE: loaded(metadata) if metadata is not None else None}
    return check(intent(Endpoint.COMMIT_TABLE, TABLE, body), state)


def test_a_commit_to_a_table_that_is_gone() -> None:
    assert check_commit(None, [KEEP_OWNER]) is NOT_APPLIED
    assert check_commit(None, []) is NOT_APPLIED


def test_a_commit_to_a_table_that_is_another_by_now() -> None:
    same = {"type": "assert-table-uuid", "uuid": TABLE_UUID.upper()}

    assert check_commit(table_metadata(), [KEEP_OWNER], same) is APPLIED
    assert check_commit(table_metadata(), [SET_OWNER], same) is NOT_APPLIED
    assert check_commit(RECREATED, [KEEP_OWNER], same) is INCOMPATIBLE
    assert check_commit(RECREATED, [], same) is INCOMPATIBLE
    assert check_commit(RECREATED, [KEEP_OWNER]) is APPLIED


def test_a_commit_that_gives_the_table_another_uuid() -> None:
    was = {"type": "assert-table-uuid", "uuid": OTHER_UUID}

    assert check_commit(table_metadata(), [ASSIGN_UUID], was) is APPLIED
    assert check_commit(RECREATED, [ASSIGN_UUID], was) is NOT_APPLIED
    # Outside of a create it may have had that one before.
    assert check_commit(table_metadata(), [ASSIGN_UUID, SET_OWNER]) is NOT_APPLIED


def test_a_table_without_uuid_is_not_another() -> None:
    same = {"type": "assert-table-uuid", "uuid": TABLE_UUID}

    for updates in ([SET_OWNER], [ASSIGN_UUID]):
        assert check_commit(table_metadata(table_uuid=None), updates, same) is NOT_APPLIED


@pytest.mark.parametrize(
    ("metadata", "updates", "expected"),
    [
        (None, [ASSIGN_UUID, SET_OWNER], NOT_APPLIED),
        (table_metadata(), [ASSIGN_UUID, KEEP_OWNER], APPLIED),
        # Its owner was changed since, and yet it is the table that was staged.
        (table_metadata(), [ASSIGN_UUID, SET_OWNER], APPLIED),
        (WITH_SNAPSHOT, [ASSIGN_UUID, ADD_SNAPSHOT], APPLIED),
        (table_metadata(), [ASSIGN_UUID, ADD_SNAPSHOT], INCOMPATIBLE),
        (RECREATED, [ASSIGN_UUID, KEEP_OWNER], INCOMPATIBLE),
        ({**WITH_SNAPSHOT, "table-uuid": OTHER_UUID}, [ASSIGN_UUID, ADD_SNAPSHOT], INCOMPATIBLE),
        (table_metadata(), [KEEP_OWNER], APPLIED),
        (table_metadata(), [SET_OWNER], INCOMPATIBLE),
        (WITH_SNAPSHOT, [ADD_SNAPSHOT], APPLIED),
        (table_metadata(), [ADD_SNAPSHOT], INCOMPATIBLE),
        (table_metadata(), [], NOT_APPLIED),
        (table_metadata(), [KEEP_OWNER, {"action": "unheard-of"}], INCOMPATIBLE),
        (table_metadata(), [ASSIGN_UUID, {"action": "unheard-of"}], APPLIED),
    ],
)
def test_committing_a_staged_table(
    metadata: Json | None, updates: list[Json], expected: Verdict
) -> None:
    assert check_commit(metadata, updates, ASSERT_CREATE) is expected


def test_replacing_a_view() -> None:
    body = {
        "requirements": [{"type": "assert-view-uuid", "uuid": VIEW_UUID}],
        "updates": [{"action": "add-view-version", "view-version": NEXT_VERSION}],
    }
    made = intent(Endpoint.REPLACE_VIEW, VIEW, body)
    replaced = {"versions": [VERSION, NEXT_VERSION]}

    assert check(made, {VIEW: None}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata())}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata(**replaced))}) is APPLIED
    another = view_metadata(**replaced, view_uuid=OTHER_UUID)
    assert check(made, {VIEW: loaded(another)}) is INCOMPATIBLE


# --- Transactions ---------------------------------------------------------------------------

SAME = {"type": "assert-table-uuid", "uuid": TABLE_UUID}
PROVEN = (WITH_SNAPSHOT, [ADD_SNAPSHOT])
REFUTED = (table_metadata(), [ADD_SNAPSHOT])
EITHER = (table_metadata(), [KEEP_OWNER])
MISSING = (table_metadata(), [SET_OWNER])
GONE = (None, [KEEP_OWNER])
EMPTY = (table_metadata(), [])
ANOTHER = (RECREATED, [KEEP_OWNER])


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([PROVEN, PROVEN], APPLIED),
        ([REFUTED, REFUTED], NOT_APPLIED),
        ([MISSING, REFUTED], NOT_APPLIED),
        ([GONE, MISSING], NOT_APPLIED),
        ([EITHER, EITHER], APPLIED),
        ([PROVEN, EITHER], APPLIED),
        ([EITHER, REFUTED], NOT_APPLIED),
        ([EITHER, MISSING], NOT_APPLIED),
        ([EMPTY, PROVEN], APPLIED),
        ([EMPTY, REFUTED], NOT_APPLIED),
        ([EMPTY, EITHER], APPLIED),
        ([EMPTY, EMPTY], NOT_APPLIED),
        ([PROVEN, REFUTED], INCOMPATIBLE),
        ([PROVEN, MISSING], INCOMPATIBLE),
        ([PROVEN, GONE], INCOMPATIBLE),
        ([EITHER, PROVEN, REFUTED], INCOMPATIBLE),
        ([PROVEN, ANOTHER], INCOMPATIBLE),
        ([REFUTED, ANOTHER], INCOMPATIBLE),
        ([EITHER, ANOTHER], INCOMPATIBLE),
    ],
)
def test_a_transaction_is_made_in_all_its_tables_or_in_none(
    tables: list[tuple[Json | None, list[Json]]], expected: Verdict
) -> None:
    names = [
        Identifier(ObjectKind.TABLE, ("sales",), f"t{number}") for number in range(len(tables))
    ]
    changes = [
        {
            "identifier": {"namespace": ["sales"], "name": name.name},
            "requirements": [SAME],
            "updates": updates,
        }
        for name, (_, updates) in zip(names, tables, strict=True)
    ]
    state = {
        name: loaded(metadata) if metadata is not None else None
        for name, (metadata, _) in zip(names, tables, strict=True)
    }
    made = intent(Endpoint.COMMIT_TRANSACTION, ROOT, {"table-changes": changes})

    assert check(made, state) is expected


# --- Drops and renames ----------------------------------------------------------------------

HERE = loaded(table_metadata())
ANOTHER_HERE = loaded(table_metadata(table_uuid=OTHER_UUID))
KNOWN = {"exists": True, "uuid": TABLE_UUID}


@pytest.mark.parametrize(
    ("endpoint", "target", "here", "another"),
    [
        (Endpoint.DROP_TABLE, TABLE, HERE, ANOTHER_HERE),
        (
            Endpoint.DROP_VIEW,
            VIEW,
            loaded(view_metadata(view_uuid=TABLE_UUID)),
            loaded(view_metadata(view_uuid=OTHER_UUID)),
        ),
    ],
)
def test_dropping_a_table_or_view(
    endpoint: Endpoint, target: Identifier, here: Json, another: Json
) -> None:
    def verdict(present: Json | None, **before: Any) -> Verdict:
        return check(intent(endpoint, target, {}, **before), {target: present})

    assert verdict(None, **KNOWN) is APPLIED
    assert verdict(None) is APPLIED
    assert verdict(None, exists=False) is NOT_APPLIED
    assert verdict(here, **KNOWN) is NOT_APPLIED
    assert verdict(here) is NOT_APPLIED
    assert verdict(another, **KNOWN) is APPLIED
    assert verdict(another, exists=True) is NOT_APPLIED
    assert verdict(loaded({}), **KNOWN) is NOT_APPLIED


def test_dropping_a_namespace() -> None:
    here = {"namespace": ["sales"], "properties": {}}

    def verdict(present: Json | None, **before: Any) -> Verdict:
        return check(intent(Endpoint.DROP_NAMESPACE, NAMESPACE, {}, **before), {NAMESPACE: present})

    assert verdict(None, exists=True) is APPLIED
    assert verdict(None) is APPLIED
    assert verdict(None, exists=False) is NOT_APPLIED
    assert verdict(here, exists=True) is NOT_APPLIED


@pytest.mark.parametrize(
    ("source", "destination", "before", "expected"),
    [
        (None, HERE, KNOWN, APPLIED),
        (None, HERE, {"exists": True}, APPLIED),
        (None, HERE, {}, APPLIED),
        (None, HERE, {"exists": False}, NOT_APPLIED),
        (HERE, None, KNOWN, NOT_APPLIED),
        (HERE, None, {}, NOT_APPLIED),
        (HERE, ANOTHER_HERE, KNOWN, NOT_APPLIED),
        # Renamed, and then another table took the old name.
        (ANOTHER_HERE, HERE, KNOWN, APPLIED),
        (ANOTHER_HERE, None, KNOWN, INCOMPATIBLE),
        (None, None, KNOWN, INCOMPATIBLE),
        (None, None, {"exists": False}, NOT_APPLIED),
        (None, None, {}, NOT_APPLIED),
        (None, ANOTHER_HERE, KNOWN, INCOMPATIBLE),
    ],
)
def test_renaming_a_table(
    source: Json | None, destination: Json | None, before: Json, expected: Verdict
) -> None:
    body = {
        "source": {"namespace": ["sales"], "name": "orders"},
        "destination": {"namespace": ["archive"], "name": "orders"},
    }
    made = intent(Endpoint.RENAME_TABLE, ROOT, body, **before)

    assert check(made, {TABLE: source, MOVED_TABLE: destination}) is expected


def test_renaming_a_view() -> None:
    body = {
        "source": {"namespace": ["sales"], "name": "totals"},
        "destination": {"namespace": ["archive"], "name": "totals"},
    }
    made = intent(Endpoint.RENAME_VIEW, ROOT, body, exists=True, uuid=VIEW_UUID)
    view = loaded(view_metadata())

    assert check(made, {VIEW: None, MOVED_VIEW: view}) is APPLIED
    assert check(made, {VIEW: view, MOVED_VIEW: None}) is NOT_APPLIED


# --- Properties of a namespace --------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({"owner": "bo", "s3.secret-access-key": "hunter2", "more": "1"}, APPLIED),
        ({"owner": "bo", "s3.secret-access-key": "hunter3"}, NOT_APPLIED),
        ({"owner": "ana", "s3.secret-access-key": "hunter2"}, NOT_APPLIED),
        ({"owner": "bo", "s3.secret-access-key": "hunter2", "old": "1"}, NOT_APPLIED),
        ({"owner": "bo"}, NOT_APPLIED),
        (None, NOT_APPLIED),
    ],
)
def test_updating_the_properties_of_a_namespace(present: Json | None, expected: Verdict) -> None:
    body = {"updates": {"owner": "bo", "s3.secret-access-key": "hunter2"}, "removals": ["old"]}
    state = {
        NAMESPACE: None if present is None else {"namespace": ["sales"], "properties": present}
    }

    assert check(intent(Endpoint.UPDATE_NAMESPACE, NAMESPACE, body), state) is expected
