"""Histories are kept short, and nothing is deleted that ingest has not written itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import requests

from moraine.ingest.tables.cleanup import expire_old_snapshots
from moraine.ingest.tables.snapshots import BATCH
from support.ingest import DATABASE, Door, IngestSite, new_table
from support.waiting import wait_for


def expire(site: IngestSite, table: str, keep: int = 4, *, in_doubt: bool = False) -> int:
    with site.noted_tables() as tables:
        loaded = tables.load(DATABASE, table)
        return expire_old_snapshots(tables, loaded, keep=keep, in_doubt=lambda: in_doubt)


def write(door: Door, table: str, lines: int) -> None:
    """One commit for each line."""
    for number in range(lines):
        door.write(table, [{"message": str(number)}])


def filled(door: Door, lines: int) -> str:
    table = new_table()
    write(door, table, lines)
    return table


def metadata_folder(site: IngestSite, table: str) -> Path:
    return site.stack.catalog.warehouse / DATABASE / table / "metadata"


def avro_files(site: IngestSite, table: str) -> set[Path]:
    return set(metadata_folder(site, table).glob("*.avro"))


def read_all(site: IngestSite, table: str) -> int:
    """Through every manifest, as a reader does."""
    return int(site.tables().load(DATABASE, table).scan().to_arrow().num_rows)


def commit(site: IngestSite, table: str, *updates: dict[str, Any]) -> None:
    url = f"{site.stack.catalog.url}/v1/namespaces/{DATABASE}/tables/{table}"
    answer = requests.post(url, json={"requirements": [], "updates": list(updates)}, timeout=30)
    assert answer.status_code == 200, answer.text


def forge(site: IngestSite, table: str, lists: list[str]) -> None:
    """Add appends with these manifest lists to the main branch, and one that reads as before."""
    metadata = site.tables().load(DATABASE, table).metadata
    current = metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    named = {"operation": "append", BATCH: current.summary.additional_properties[BATCH]}
    parent, sequence = current.snapshot_id, metadata.last_sequence_number
    now = int(time.time() * 1000)
    updates: list[dict[str, Any]] = []
    for number, path in enumerate([*lists, current.manifest_list], 1):
        forged = {
            "snapshot-id": 1000 + number,
            "parent-snapshot-id": parent,
            "sequence-number": sequence + number,
            "timestamp-ms": now + number,
            "manifest-list": path,
            "summary": named,
            "schema-id": 0,
        }
        updates.append({"action": "add-snapshot", "snapshot": forged})
        parent = 1000 + number
    head = {"ref-name": "main", "type": "branch", "snapshot-id": parent}
    commit(site, table, *updates, {"action": "set-snapshot-ref", **head})


def lists_of(site: IngestSite, table: str) -> list[str]:
    found = site.tables().load(DATABASE, table).metadata.snapshots
    return [snapshot.manifest_list for snapshot in found]


def test_history_is_kept_short_where_all_is_appended(site: IngestSite, door: Door) -> None:
    table = filled(door, 10)
    loaded = site.tables().load(DATABASE, table)
    tagged = loaded.metadata.snapshots[2].snapshot_id
    loaded.manage_snapshots().create_tag(tagged, "kept").commit()
    before = avro_files(site, table)

    assert expire(site, table, in_doubt=True) == 0
    assert expire(site, table) == 5

    left = site.tables().load(DATABASE, table)
    assert len(left.metadata.snapshots) == 5
    assert left.metadata.snapshot_by_id(tagged) is not None
    assert len(before - avro_files(site, table)) == 5  # their lists; all manifests are in use
    assert read_all(site, table) == 10
    assert left.scan(snapshot_id=tagged).to_arrow().num_rows == 3
    noted = "SELECT snapshot_id FROM ingest_snapshots WHERE table_uuid = %s"
    kept = {row["snapshot_id"] for row in site.rows(noted, left.metadata.table_uuid)}
    assert kept == {snapshot.snapshot_id for snapshot in left.metadata.snapshots}
    write(door, table, 1)


def test_a_branch_can_be_read_after_an_expiry(site: IngestSite, door: Door) -> None:
    """Also where its manifests were merged on the main branch since."""
    table = filled(door, 5)
    merging = {"commit.manifest.min-count-to-merge": "2"}
    commit(site, table, {"action": "set-properties", "updates": merging})
    head = site.tables().load(DATABASE, table).metadata.current_snapshot_id
    branch = {"ref-name": "dev", "type": "branch", "snapshot-id": head}
    commit(site, table, {"action": "set-snapshot-ref", **branch})
    write(door, table, 6)
    before = avro_files(site, table)

    assert expire(site, table, keep=2) == 4

    left = site.tables().load(DATABASE, table)
    assert left.scan(snapshot_id=head).to_arrow().num_rows == 5
    assert read_all(site, table) == 11
    gone = before - avro_files(site, table)
    assert sum(path.name.startswith("snap-") for path in gone) == 4
    assert len(gone) > 4, "manifests that were merged are still there"


def test_forged_snapshots_delete_nothing_of_another_table(site: IngestSite, door: Door) -> None:
    """As it was done: with default settings, by one line."""
    victim, table = filled(door, 3), filled(door, 1)
    before = avro_files(site, victim), avro_files(site, table)
    forge(site, table, lists_of(site, victim) * 53)
    write(door, table, 1)
    open_batches = "SELECT 1 FROM ingest_batches WHERE table_name = %s"
    wait_for(lambda: not site.rows(open_batches, table) or None, "the writer is not done")
    assert avro_files(site, victim) == before[0]
    assert avro_files(site, table) > before[1]
    assert (read_all(site, victim), read_all(site, table)) == (3, 2)


@pytest.mark.parametrize("claim", ["nothing", "its metadata folder", "its location"])
def test_a_table_that_claims_the_place_of_another_deletes_nothing_there(
    site: IngestSite, door: Door, claim: str
) -> None:
    victim, table = filled(door, 4), filled(door, 8)
    place = site.tables().load(DATABASE, victim).location()
    before = avro_files(site, victim)
    forge(site, table, lists_of(site, victim) * 3)
    if claim == "its metadata folder":
        path = {"write.metadata.path": f"{place}/metadata"}
        commit(site, table, {"action": "set-properties", "updates": path})
    if claim == "its location":
        commit(site, table, {"action": "set-location", "location": place})
    write(door, table, 8)

    # What is in no place of the table's own is not even looked at.
    assert expire(site, table, keep=2) == (14 if claim == "its metadata folder" else 0)

    assert before <= avro_files(site, victim)
    assert (read_all(site, victim), read_all(site, table)) == (4, 16)


def test_a_registered_copy_deletes_nothing_of_its_original(site: IngestSite, door: Door) -> None:
    """It has the same uuid, the same location and the same snapshots."""
    original, copy = filled(door, 6), new_table()
    location = site.tables().load(DATABASE, original).metadata_location
    url = f"{site.stack.catalog.url}/v1/namespaces/{DATABASE}/register"
    body = {"name": copy, "metadata-location": location}
    assert requests.post(url, json=body, timeout=30).status_code == 200
    before = avro_files(site, original)
    write(door, copy, 4)
    assert expire(site, copy, keep=2) == 0
    assert before <= avro_files(site, original)
    assert (read_all(site, original), read_all(site, copy)) == (6, 10)


def test_a_property_does_not_make_a_table_ours(site: IngestSite, door: Door) -> None:
    table = new_table()
    made = site.tables().create(DATABASE, table)
    with made.transaction() as transaction:
        transaction.set_properties({"moraine.ingest.made": "true"})
    write(door, table, 8)
    before = avro_files(site, table)
    assert expire(site, table, keep=2) == 0
    assert avro_files(site, table) == before


def test_a_table_outside_the_allowed_places_is_left_alone(site: IngestSite, door: Door) -> None:
    table = filled(door, 8)
    before = avro_files(site, table)
    with site.noted_tables(allowed_locations=["s3://elsewhere/lake"]) as tables:
        loaded = tables.load(DATABASE, table)
        assert expire_old_snapshots(tables, loaded, keep=2, in_doubt=lambda: False) == 0
    assert avro_files(site, table) == before
    assert len(site.tables().load(DATABASE, table).metadata.snapshots) == 8


def test_a_table_whose_garbage_is_kept_is_left_alone(site: IngestSite, door: Door) -> None:
    table = filled(door, 8)
    kept = {"gc.enabled": "false"}
    commit(site, table, {"action": "set-properties", "updates": kept})
    assert expire(site, table, keep=2) == 0


def test_a_table_that_is_made_over_the_api_is_known_as_well(site: IngestSite, door: Door) -> None:
    table = new_table()
    columns = [{"name": "message", "type": "string"}]
    body = {"database": DATABASE, "table": table, "columns": columns}
    assert door.call("POST", "/v1/tables", json=body).status_code == 201
    write(door, table, 6)
    assert expire(site, table, keep=2) == 4
