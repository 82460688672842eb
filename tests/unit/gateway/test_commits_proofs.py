"""Commits of several updates: the last word counts, and some prove that all were made."""

from __future__ import annotations

from typing import Any

import pytest

from moraine.gateway.model import Verdict
from support.iceberg_bodies import (
    NEXT_VERSION,
    SCHEMA,
    VERSION,
    VIEW,
    WIDER_SCHEMA,
    table_metadata,
    view_metadata,
)
from support.iceberg_updates import (
    ADD_SNAPSHOT,
    ADD_VERSION,
    ADD_WIDER,
    BOTH_VERSIONS,
    SET_STATISTICS,
    TAG,
    snapshot,
    statistics,
)
from support.intents import commit_intent, verdict

Json = dict[str, Any]


# --- Several updates ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "metadata"),
    [
        (
            [
                {"action": "set-properties", "updates": {"owner": "bo"}},
                {"action": "set-properties", "updates": {"owner": "ana"}},
            ],
            table_metadata(),
        ),
        (
            [
                {"action": "set-properties", "updates": {"owner": "bo"}},
                {"action": "remove-properties", "removals": ["owner"]},
            ],
            table_metadata(properties={}),
        ),
        (
            [TAG, {"action": "remove-snapshot-ref", "ref-name": "v1"}],
            table_metadata(),
        ),
        (
            [
                {"action": "set-location", "location": "s3://lake/x"},
                {"action": "set-location", "location": "s3://lake/sales/orders"},
            ],
            table_metadata(),
        ),
        (
            [
                ADD_WIDER,
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "set-current-schema", "schema-id": 0},
            ],
            table_metadata(schemas=[SCHEMA, WIDER_SCHEMA]),
        ),
        (
            [
                ADD_SNAPSHOT,
                {"action": "remove-snapshots", "snapshot-ids": [12]},
            ],
            table_metadata(),
        ),
    ],
)
def test_the_later_of_two_contradicting_updates_wins(updates: list[Json], metadata: Json) -> None:
    assert verdict(metadata, *updates) is Verdict.APPLIED
    if updates[0] is not ADD_WIDER:
        assert verdict(metadata, *reversed(updates)) is Verdict.NOT_APPLIED


def test_every_update_of_a_commit_must_show() -> None:
    updates = (
        {"action": "set-properties", "updates": {"owner": "ana"}},
        {"action": "set-location", "location": "s3://lake/elsewhere"},
    )

    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(location="s3://lake/elsewhere"), *updates) is Verdict.APPLIED


def test_a_property_too_long_or_too_secret_to_be_kept_is_still_compared() -> None:
    values = {"comment": "x" * 5000, "s3.secret-access-key": "hunter2", "odd": "sha256:abc"}
    update = {"action": "set-properties", "updates": values}

    assert verdict(table_metadata(properties=values), update) is Verdict.APPLIED
    for name in values:
        changed = {**values, name: values[name] + "!"}
        assert verdict(table_metadata(properties=changed), update) is Verdict.NOT_APPLIED


def test_a_value_does_not_pass_for_another_by_looking_like_its_digest() -> None:
    update = {"action": "set-properties", "updates": {"comment": "x" * 5000}}
    digest = commit_intent(update).effect["facts"]["property"]["comment"]

    assert verdict(table_metadata(properties={"comment": digest}), update) is Verdict.NOT_APPLIED


# --- Proofs ---------------------------------------------------------------------------------


def test_snapshots_prove_a_commit_whatever_came_after_it() -> None:
    updates = (
        ADD_SNAPSHOT,
        {"action": "add-snapshot", "snapshot": snapshot(13)},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 13},
        {"action": "set-properties", "updates": {"owner": "bo"}},
        SET_STATISTICS,
    )
    first, second, later = snapshot(12), snapshot(13), snapshot(14)

    assert verdict(table_metadata(snapshots=[first, second, later]), *updates) is Verdict.APPLIED
    assert verdict(table_metadata(snapshots=[first, later]), *updates) is Verdict.INCOMPATIBLE
    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    # The statistics are there, say because another commit has named the same file.
    metadata = table_metadata(statistics=[statistics()])
    assert verdict(metadata, *updates) is Verdict.NOT_APPLIED


def test_what_is_not_there_proves_nothing() -> None:
    updates = (
        {"action": "remove-snapshots", "snapshot-ids": [12]},
        {"action": "remove-statistics", "snapshot-id": 12},
        {"action": "set-properties", "updates": {"owner": "bo"}},
    )

    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(properties={"owner": "bo"}), *updates) is Verdict.APPLIED


def test_a_statistics_file_proves_a_commit() -> None:
    updates = (SET_STATISTICS, {"action": "set-properties", "updates": {"owner": "bo"}})

    assert verdict(table_metadata(statistics=[statistics()]), *updates) is Verdict.APPLIED
    others = table_metadata(statistics=[statistics("s3://lake/b.puffin")])
    assert verdict(others, *updates) is Verdict.NOT_APPLIED


def test_a_view_version_proves_a_commit_if_it_was_made_at_that_time() -> None:
    updates = (ADD_VERSION, {"action": "set-current-view-version", "view-version-id": -1})
    replaced_since = view_metadata(versions=BOTH_VERSIONS, current_version_id=1)
    made_at_another_time = view_metadata(
        versions=[VERSION, {**NEXT_VERSION, "timestamp-ms": 7}], current_version_id=1
    )

    assert verdict(replaced_since, *updates, target=VIEW) is Verdict.APPLIED
    assert verdict(made_at_another_time, *updates, target=VIEW) is Verdict.NOT_APPLIED


UNKNOWN = {"action": "set-colour", "colour": "red"}


@pytest.mark.parametrize(
    ("updates", "metadata", "expected"),
    [
        ([UNKNOWN], table_metadata(), Verdict.NOT_APPLIED),
        (
            [UNKNOWN, {"action": "set-properties", "updates": {"owner": "ana"}}],
            table_metadata(),
            Verdict.NOT_APPLIED,
        ),
        ([UNKNOWN, ADD_SNAPSHOT], table_metadata(snapshots=[snapshot(12)]), Verdict.APPLIED),
        ([UNKNOWN, ADD_SNAPSHOT], table_metadata(), Verdict.NOT_APPLIED),
        ([], table_metadata(), Verdict.NOT_APPLIED),
    ],
)
def test_an_unknown_action_is_never_taken_for_applied(
    updates: list[Json], metadata: Json, expected: Verdict
) -> None:
    assert verdict(metadata, *updates) is expected


def test_an_action_of_tables_is_unknown_to_views() -> None:
    update = {"action": "remove-snapshots", "snapshot-ids": [12]}

    assert verdict(table_metadata(), update) is Verdict.APPLIED
    assert verdict(view_metadata(), update, target=VIEW) is Verdict.NOT_APPLIED
    assert commit_intent(ADD_VERSION).effect == {"facts": {}, "unknown": ["add-view-version"]}
