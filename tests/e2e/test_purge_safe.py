"""That a purge deletes nothing else: not another table's files, not another table, not a table
that is still written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from moraine.client.delegation import ApiError
from moraine.tasks.model import Status, Task
from support.platform import Platform, checksums
from support.tables import Crafted, Workshop, local, read_avro

ROWS = "SELECT id, 'x' FROM range(0, 10, 1, 1)"


@pytest.fixture(scope="module")
def at(running_platform: Platform) -> Workshop:
    return Workshop(running_platform, "safe")


@pytest.fixture
def pair(platform: Platform) -> Workshop:
    """A namespace with few enough tables that all of them are compared."""
    return Workshop(platform, "pair")


def check_refused(task: Task, code: str, words: str) -> None:
    assert (task.status, task.error_code) == (Status.FAILURE, code), task.result_summary
    assert task.reason == "given up: the error is final"
    assert words in str(task.result_summary)


# --- Another table's place --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("file:{0}/t/inner", "file:{0}/t"),
        ("file:{0}/t", "file:{0}/t"),
        ("file:{0}/t", "file:{0}/t/"),
        ("file:{0}/t", "file://{0}/t"),
        ("{0}/t", "file:{0}/t"),
        ("file:{0}/t", "file:{0}//t"),
        ("file:{0}/t", "file:{0}/u/../t/./metadata"),
        ("file:{0}/t u", "file:{0}/t%20u"),
        ("file:{0}/t", "file:{0}/link"),
        ("file:{0}/link/inner", "file:{0}/t"),
    ],
)
def test_purge_of_a_location_that_another_table_shares(
    pair: Workshop, ours: str, theirs: str
) -> None:
    (pair.folder / "t").mkdir(parents=True)
    (pair.folder / "link").symlink_to(pair.folder / "t")
    table = pair.bare_table("ours", ours.format(pair.folder))
    pair.bare_table("theirs", theirs.format(pair.folder))
    before = checksums(pair.folder)
    assert len(before) == 2

    check_refused(pair.purge(table), "LOCATION_SHARED", f"{pair.namespace}.theirs contains")

    assert checksums(pair.folder) == before


def test_purge_treats_a_folder_with_a_common_name_prefix_as_another_place(pair: Workshop) -> None:
    table = pair.bare_table("t")
    others = [pair.bare_table("t2"), pair.bare_table("t.x", f"file:{pair.folder}/t x")]
    before = [other.files() for other in others]

    task = pair.purge(table)

    assert task.status is Status.SUCCESS
    assert "none needs one of these" in (task.result or {})["checks"]["neighbours"]
    assert table.leftovers() == []
    assert [other.files() for other in others] == before


# --- Another table ----------------------------------------------------------------------------


def test_purge_of_another_entity_than_the_one_asked_for(at: Workshop) -> None:
    table = at.bare_table("entity", **{"polaris.table-entity-id": "7"})
    before = table.files()
    identity = at.payload(table)["operation_parameters"]["table_identity"]

    task = at.purge(table, table_identity={**identity, "table_entity_id": "8"})

    check_refused(task, "TABLE_CHANGED", "table_entity_id 8, but the catalog says 7")
    assert table.files() == before


def test_purge_of_a_table_that_was_created_again_under_the_same_name(at: Workshop) -> None:
    old = at.bare_table("again")
    uuid = at.load(old).uuid
    at.forget(old)
    new = at.bare_table("again")
    before = new.files()

    task = at.purge(new, metadata={"table-uuid": uuid})

    check_refused(task, "TABLE_CHANGED", uuid)
    assert new.files() == before


# --- A table that changes meanwhile -----------------------------------------------------------


def write_to(at: Workshop, table: Crafted) -> None:
    at.set_properties(table, touched=str(uuid4()))


def replace(at: Workshop, table: Crafted) -> None:
    at.forget(table)
    at.bare_table(table.name)


@pytest.mark.parametrize("change", [write_to, replace])
@pytest.mark.parametrize("done", [["acquire"], ["acquire", "plan"]], ids=["acquired", "planned"])
def test_purge_of_a_table_that_changes_before_the_first_delete(
    at: Workshop, change: Callable[[Workshop, Crafted], None], done: list[str]
) -> None:
    table = at.bare_table(f"changing_{change.__name__}_{done[-1]}")
    write_to(at, table)
    attempt = at.attempt(table)
    assert all(map(attempt.take, done))
    change(at, table)
    before = table.files()

    assert not attempt.take("delete" if "plan" in done else "plan")

    check_refused(attempt.task, "TABLE_CHANGED", "Nothing was deleted.")
    assert table.files() == before


def test_purge_of_a_table_that_is_written_to_at_the_last_moment(platform: Platform) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.plan.recorded")
    caller = platform.executing(table)
    platform.failpoints.wait_until_hit("purge.plan.recorded")
    platform.spark.sql(f"INSERT INTO {table.subject} VALUES (1000, 2000)")
    before = table.files()
    platform.failpoints.release("purge.plan.recorded")

    error = caller.exception(timeout=120)

    assert isinstance(error, ApiError)
    assert (error.status, error.body["error_code"]) == (409, "TABLE_CHANGED")
    assert "Nothing was deleted." in error.body["message"]
    assert table.files() == before
    assert platform.spark.table(table.subject).count() == 100


def test_purge_does_not_take_metadata_written_meanwhile_for_the_root(at: Workshop) -> None:
    table = at.bare_table("late")
    write_to(at, table)
    attempt = at.attempt(table)
    assert all(map(attempt.take, ["acquire", "plan", "delete"]))
    write_to(at, table)
    before = table.files()

    assert not attempt.take("verify")

    check_refused(attempt.task, "TABLE_CHANGED", "metadata_location")
    assert table.files() == before
    assert local(at.load(table).metadata_location) in before


# --- Files elsewhere --------------------------------------------------------------------------


class Elsewhere:
    """A table whose manifest names files that it must not, and files with odd paths that are its
    own. It is purged twice: as the settings are, and so that files outside are skipped."""

    def __init__(self, at: Workshop) -> None:
        self.table = at.table("elsewhere")
        at.insert(self.table, ROWS)
        data, folder = f"{self.table.folder}/data", at.folder / "outside"
        (self.table.folder / "data" / "sub").mkdir()
        folder.mkdir()
        (Path(data) / "link").symlink_to(folder)
        (Path(data) / "linked.parquet").symlink_to(folder / "target.parquet")
        beside = Path(f"{self.table.folder}x")
        beside.mkdir()
        outside = {
            "dots": f"{data}/../../outside/dots.parquet",
            "encoded dots": f"{data}/%2e%2e/%2E%2e/outside/encoded.parquet",
            "twice encoded dots": f"{data}/%252e%252e/%252e%252e/outside/twice.parquet",
            "encoded slashes": f"{data}/..%2f..%2foutside%2fslashes.parquet",
            "backslashes": f"{data}/..\\..\\outside\\back.parquet",
            "a linked folder": f"{data}/link/in_a_link.parquet",
            "dots behind a link": f"{data}/link/../outside/behind.parquet",
            "a path of its own": f"file://{folder}/plain.parquet",
            "a name that begins alike": f"file:{beside}/alike.parquet",
            "a relative path": "outside/relative.parquet",
            "another store": "s3://bucket/key.parquet",
            "a store that Moraine does not speak": "hdfs://host/path.parquet",
            "a folder": f"{data}/",
            "the folder above": f"{data}/..",
            "the table": f"{self.table.folder}",
            "the disk": "/",
        }
        inside = {
            "a dot": f"{data}/./dot.parquet",
            "two slashes": f"{data}//slashes.parquet",
            "three slashes": f"file://{data}/three.parquet",
            "dots that stay": f"{data}/sub/../stay.parquet",
            "a percent sign": f"{data}/100%25.parquet",
            "a link to a file": f"{data}/linked.parquet",
        }
        self.outside, self.inside = outside, inside
        others = ("dots", "encoded", "twice", "slashes", "back", "plain", "target")
        for name in (*others, "in_a_link", "behind", "relative"):
            (folder / f"{name}.parquet").write_text("others'")
        (beside / "alike.parquet").write_text("others'")
        for name in ("dot", "slashes", "three", "stay", "100%25"):
            Path(data, f"{name}.parquet").write_text("ours")
        at.forge(self.table, [*outside.values(), *inside.values()])

        self.places = [folder, beside]
        self.before, self.targets = self.table.files(), self._targets()
        self.refused = at.purge(self.table)
        self.after_refusal = self.table.files(), self._targets()
        self.skipped = at.purge(self.table, {"outside_files": "skip"})
        self.after_skipping = set(self.table.leftovers()), self._targets()
        self.link = Path(data) / "linked.parquet"

    def _targets(self) -> dict[str, str]:
        return {path: sum_ for place in self.places for path, sum_ in checksums(place).items()}


@pytest.fixture(scope="module")
def elsewhere(at: Workshop) -> Elsewhere:
    return Elsewhere(at)


def test_purge_names_all_files_outside_before_it_deletes_anything(elsewhere: Elsewhere) -> None:
    words = f"{len(elsewhere.outside)} files lie outside"
    check_refused(elsewhere.refused, "PATH_OUTSIDE_TABLE", words)
    named = (elsewhere.refused.result or {})["outside"]
    assert sorted(named["paths"]) == sorted(elsewhere.outside.values())
    assert named["files"] == len(elsewhere.outside)
    assert elsewhere.after_refusal == (elsewhere.before, elsewhere.targets)


def test_purge_skips_and_names_files_outside_if_the_settings_say_so(elsewhere: Elsewhere) -> None:
    task = elsewhere.skipped
    assert task.status is Status.SUCCESS, (task.error_code, task.result_summary)
    result = task.result or {}
    assert sorted(result["skipped"]["paths"]) == sorted(elsewhere.outside.values())
    assert result["skipped"]["reason"] == "outside the table's locations"
    assert f"{len(elsewhere.outside)} files outside" in str(task.result_summary)
    assert result["by_kind"]["data"]["files"] == 1 + len(elsewhere.inside)
    assert (result["files_already_missing"], result["files_left"]) == (0, 0)
    assert result["files_deleted"] == result["files_found"] == len(elsewhere.before)
    assert elsewhere.after_skipping == (set(), elsewhere.targets)
    assert not elsewhere.link.is_symlink()


def test_purge_of_a_table_with_metadata_outside(at: Workshop) -> None:
    """Manifests, their lists, statistics and older metadata are held to the same rule as data."""
    table = at.table("astray")
    at.insert(table, ROWS)
    at.insert(table, ROWS)
    away = at.folder / "away"
    away.mkdir()
    current = Path(local(at.load(table).metadata_location))
    metadata = json.loads(current.read_text())

    def move(path: str) -> str:
        return f"file:{shutil.move(local(path), away)}"

    first, second = metadata["snapshots"]
    first["manifest-list"] = move(first["manifest-list"])
    listed = read_avro(second["manifest-list"])
    listed.rows[0]["manifest_path"] = move(listed.rows[0]["manifest_path"])
    listed.write(Path(local(second["manifest-list"])))
    metadata["metadata-log"][0]["metadata-file"] = move(
        metadata["metadata-log"][0]["metadata-file"]
    )
    (away / "x.stats").write_text("others'")
    statistics: dict[str, Any] = {
        "snapshot-id": first["snapshot-id"],
        "statistics-path": f"file:{away}/x.stats",
        "file-size-in-bytes": 7,
    }
    metadata["statistics"] = [statistics | {"file-footer-size-in-bytes": 1, "blob-metadata": []}]
    metadata["partition-statistics"] = [
        statistics | {"statistics-path": f"file:{away}/partition.stats"}
    ]
    (away / "partition.stats").write_text("others'")
    current.write_text(json.dumps(metadata))
    at.forget(table)
    table = at.register("astray", current)
    before, others = table.files(), checksums(away)
    assert len(others) == 5

    task = at.purge(table)

    # The files that the metadata names are not read, so what they name is unknown.
    check_refused(task, "PATH_OUTSIDE_TABLE", "4 files lie outside")
    named = (task.result or {})["outside"]["paths"]
    assert {local(path) for path in named} < set(others)
    assert table.files() == before
    assert checksums(away) == others


def test_purge_leaves_added_files_to_their_owner(at: Workshop) -> None:
    """As `add_files` leaves them: a table that refers to files in another place."""
    owner, table = at.table("owner"), at.table("adopted")
    at.insert(owner, ROWS)
    at.insert(table, ROWS)
    at.call("add_files", table, source_table=f"'`parquet`.`{owner.folder}/data`'")
    assert at.count(table) == 20
    before, theirs = table.files(), owner.files()

    check_refused(at.purge(table), "PATH_OUTSIDE_TABLE", "1 file lies outside")
    assert (table.files(), owner.files()) == (before, theirs)

    task = at.purge(table, {"outside_files": "skip"})
    assert task.status is Status.SUCCESS
    [skipped] = (task.result or {})["skipped"]["paths"]
    assert local(skipped) in theirs
    assert table.leftovers() == []
    assert owner.files() == theirs
    assert at.count(owner) == 10


def test_purge_leaves_files_that_no_metadata_names(at: Workshop) -> None:
    table = at.table("orphans")
    at.insert(table, ROWS)
    own = set(table.files())
    [data] = [path for path in own if "/data/" in path]
    orphans = [
        Path(data).with_name("00000-0-orphan.parquet"),
        table.folder / "data" / ".hidden",
        table.folder / "metadata" / "snap-1-orphan.avro",
        table.folder / "another table" / "data" / "file.parquet",
    ]
    for file in orphans:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data, file)

    task = at.purge(table)

    assert task.status is Status.SUCCESS
    assert set(table.leftovers()) == {str(file) for file in orphans}
    assert (task.result or {})["files_deleted"] == len(own)


def test_purge_dry_run_of_a_table_that_may_not_be_purged(at: Workshop) -> None:
    table = at.bare_table("kept", **{"gc.enabled": "false"})
    before = table.files()
    task = at.purge(table, properties={"dryRun": "true"})
    check_refused(task, "PURGE_FORBIDDEN", "gc.enabled=false")
    assert table.files() == before
