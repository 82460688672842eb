"""Kinds, phases, and the checkpoint as the ledger keeps it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from moraine.drops.tombstones import DELETING_MARK
from moraine.operations.purge.model import (
    PHASE_OF,
    Checkpoint,
    EarlierPurge,
    FileKind,
    FileTotals,
    Findings,
    InventorySummary,
    ListedFiles,
    Phase,
    PhaseState,
    PinnedTable,
    RootState,
    Verification,
)

# Written before the checkpoint had a type. PostgreSQL sorts the keys by their length.
WRITTEN: dict[str, Any] = json.loads(
    """
    {
      "root": {"done": true, "deleted": true, "missing": false},
      "table": {
        "uuid": "8a3c6f2e-0000-4000-8000-000000000001",
        "roots": ["file:///warehouse/shop/orders"],
        "location": "file:///warehouse/shop/orders",
        "metadata_location": "file:///warehouse/shop/orders/metadata/00002.metadata.json"
      },
      "phases": {
        "content": {"done": true, "seconds": 1.25},
        "manifests": {"done": true, "seconds": 0.5},
        "old_metadata": {"done": false},
        "manifest_lists": {"done": true, "seconds": 0.125}
      },
      "seconds": {"delete": 2.5, "verify": 0.75},
      "deleting": true,
      "findings": {
        "checks": {"neighbours": "2 other tables have files in the same folders."},
        "skipped": {
          "files": 3, "paths": ["file:///elsewhere/a"], "reason": "outside the table's locations"
        },
        "missing_metadata": {"files": 1, "paths": ["file:///warehouse/shop/orders/m.avro"]}
      },
      "verified": {"attempt": 2},
      "inventory": {
        "bytes": 700,
        "files": 12,
        "kinds": {
          "data": {"bytes": 500, "files": 8},
          "manifest": {"bytes": 80, "files": 1},
          "old_metadata": {"bytes": 50, "files": 1},
          "manifest_list": {"bytes": 40, "files": 1},
          "current_metadata": {"bytes": 30, "files": 1}
        },
        "phases": {
          "content": 8, "manifests": 1, "old_metadata": 1, "manifest_lists": 1,
          "current_metadata": 1
        },
        "seconds": 3.5,
        "location": "file:///workspace/tasks/1/inventory-3"
      }
    }
    """
)
ANSWERED = {
    "table": {
        "uuid": "",
        "roots": ["s3://lake/t"],
        "location": "s3://lake/t",
        "metadata_location": "s3://lake/t/metadata/1.json",
    },
    "earlier": {
        "task_id": "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11",
        "result": {"files_deleted": 12, "by_kind": {"data": {"files": 8, "bytes": 500}}},
    },
}


def test_purge_checkpoint_of_an_earlier_version_is_read() -> None:
    checkpoint = Checkpoint.model_validate(WRITTEN)

    assert checkpoint.pinned.uuid == "8a3c6f2e-0000-4000-8000-000000000001"
    assert checkpoint.pinned.metadata_location.endswith("/00002.metadata.json")
    assert checkpoint.pinned.roots == ["file:///warehouse/shop/orders"]
    assert checkpoint.deleting
    assert checkpoint.root_is_done
    assert checkpoint.verified == Verification(attempt=2)
    assert checkpoint.planned.files == 12
    assert checkpoint.planned.kinds[FileKind.DATA] == FileTotals(files=8, bytes=500)
    assert checkpoint.planned.phases[Phase.CONTENT] == 8
    assert checkpoint.phases[Phase.CONTENT] == PhaseState(done=True, seconds=1.25)
    assert checkpoint.unfinished_phases == [Phase.OLD_METADATA]
    assert checkpoint.seconds == {"delete": 2.5, "verify": 0.75}
    assert checkpoint.findings.skipped is not None
    assert checkpoint.findings.skipped.paths == ["file:///elsewhere/a"]
    assert checkpoint.earlier is None


@pytest.mark.parametrize("written", [{}, WRITTEN, ANSWERED], ids=["empty", "full", "answered"])
def test_purge_checkpoint_is_written_as_it_was_read(written: dict[str, Any]) -> None:
    assert Checkpoint.model_validate(written).to_json() == written


def test_purge_checkpoint_of_a_task_that_has_not_begun_is_empty() -> None:
    checkpoint = Checkpoint.model_validate({})
    assert not checkpoint.deleting
    assert not checkpoint.root_is_done
    assert checkpoint.table is checkpoint.inventory is checkpoint.root is checkpoint.earlier is None
    with pytest.raises(LookupError, match="inventory"):
        _ = checkpoint.planned


@pytest.mark.parametrize(
    ("patch", "written"),
    [
        (
            Checkpoint(
                table=PinnedTable(uuid="u", metadata_location="m", location="l", roots=["l"]),
                findings=Findings(checks={}),
            ),
            {
                "table": {"uuid": "u", "metadata_location": "m", "location": "l", "roots": ["l"]},
                "findings": {"checks": {}},
            },
        ),
        (
            Checkpoint(
                inventory=InventorySummary.of(
                    "l",
                    {
                        FileKind.DATA: FileTotals(files=2, bytes=9),
                        FileKind.EQUALITY_DELETES: FileTotals(files=1, bytes=1),
                        FileKind.CURRENT_METADATA: FileTotals(files=1, bytes=3),
                    },
                    1.23456,
                    "d",
                ),
                phases={},
                findings=Findings(missing_metadata=ListedFiles(files=1, paths=["a"])),
            ),
            {
                "inventory": {
                    "location": "l",
                    "files": 4,
                    "bytes": 13,
                    "kinds": {
                        "data": {"files": 2, "bytes": 9},
                        "equality_deletes": {"files": 1, "bytes": 1},
                        "current_metadata": {"files": 1, "bytes": 3},
                    },
                    "phases": {"content": 3, "current_metadata": 1},
                    "seconds": 1.235,
                    "digest": "d",
                },
                "phases": {},
                "findings": {"missing_metadata": {"files": 1, "paths": ["a"]}},
            },
        ),
        (
            Checkpoint(deleting=True, phases={Phase.CONTENT: PhaseState(done=False)}),
            {"deleting": True, "phases": {"content": {"done": False}}},
        ),
        (
            Checkpoint(root=RootState(deleted=True, done=True)),
            {"root": {"deleted": True, "done": True}},
        ),
        (Checkpoint(verified=Verification(attempt=3)), {"verified": {"attempt": 3}}),
        (
            Checkpoint(
                earlier=EarlierPurge.model_validate({"task_id": "0" * 32, "result": {"a": 1}})
            ),
            {"earlier": {"task_id": "00000000-0000-0000-0000-000000000000", "result": {"a": 1}}},
        ),
    ],
    ids=["pinned", "planned", "deleting", "root", "verified", "earlier"],
)
def test_purge_checkpoint_patch_has_only_the_fields_that_were_set(
    patch: Checkpoint, written: dict[str, Any]
) -> None:
    assert patch.to_json() == written


def test_purge_checkpoint_mark_is_read_by_drops() -> None:
    """They are a layer below, so they cannot use the type."""
    assert Checkpoint(deleting=True).to_json() == {DELETING_MARK: True}


# --- Errors -------------------------------------------------------------------------------------


def test_purge_errors_are_known_to_a_process_that_knows_the_operation() -> None:
    """The API gets only the code from the ledger, and answers with the status of its class."""
    codes = {
        "TABLE_CHANGED": 409,
        "PURGE_FORBIDDEN": 409,
        "LOCATION_NOT_ALLOWED": 409,
        "LOCATION_SHARED": 409,
        "NEIGHBOURS_UNKNOWN": 409,
        "PATH_OUTSIDE_TABLE": 409,
        "METADATA_DAMAGED": 409,
        "FILES_REMAIN": 502,
    }
    script = (
        "import moraine.operations, json, sys; from moraine.errors import http_status_of;"
        "print(json.dumps({code: http_status_of(code) for code in sys.argv[1:]}))"
    )
    command = [sys.executable, "-c", script, *codes]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == codes


# --- Kinds and phases ---------------------------------------------------------------------------


def test_purge_phases_have_every_kind_and_the_root_goes_last() -> None:
    assert set(PHASE_OF) == set(FileKind)
    assert list(Phase)[-1] is PHASE_OF[FileKind.CURRENT_METADATA]
    order = list(Phase)
    leaves_first = [FileKind.DATA, FileKind.MANIFEST, FileKind.MANIFEST_LIST, FileKind.OLD_METADATA]
    ranks = [order.index(PHASE_OF[kind]) for kind in leaves_first]
    assert ranks == sorted(ranks)


def test_purge_file_kinds_have_the_numbers_that_iceberg_gives_them() -> None:
    assert list(FileKind)[:3] == [
        FileKind.DATA,
        FileKind.POSITION_DELETES,
        FileKind.EQUALITY_DELETES,
    ]
