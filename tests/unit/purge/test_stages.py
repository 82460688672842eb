"""Which phases share a Spark job, and what that job does on an executor."""

from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from moraine.operations.purge import job
from moraine.operations.purge.order import Phase


@given(st.dictionaries(st.sampled_from(list(Phase)), st.integers(0, 30_000)))
def test_stages_keep_every_phase_once_and_in_order(files: dict[str, int]) -> None:
    stages = list(job.stages(files))

    assert [phase for stage in stages for phase in stage] == [p for p in Phase if files.get(p)]
    for stage in stages:
        assert len(stage) == 1 or sum(files[phase] for phase in stage) <= 10_000


def test_a_small_table_is_one_stage() -> None:
    assert len(list(job.stages(dict.fromkeys(Phase, 100)))) == 1


def batch(rows: list[tuple[Phase, str, int | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"path": path, "phase": str(phase), "size": size} for phase, path, size in rows],
        schema=pa.schema([("path", pa.string()), ("phase", pa.string()), ("size", pa.int64())]),
    )


def test_deleting_counts_what_went_and_what_was_missing(tmp_path: Path) -> None:
    there = tmp_path / "a"
    there.write_text("12345")
    rows = [
        (Phase.CONTENT, f"file://{there}", 5),
        (Phase.CONTENT, f"file://{tmp_path}/gone", 3),
        (Phase.MANIFESTS, str(tmp_path / "m"), None),
    ]

    outcomes = [row for out in job._delete(iter([batch(rows)])) for row in out.to_pylist()]

    assert outcomes == [
        {
            "phase": "content",
            "deleted": 1,
            "missing": 1,
            "bytes": 5,
            "missing_bytes": 3,
            "failed": [],
        },
        {
            "phase": "manifests",
            "deleted": 0,
            "missing": 1,
            "bytes": 0,
            "missing_bytes": 0,
            "failed": [],
        },
    ]
    assert not there.exists()


def test_a_file_that_stays_keeps_what_names_it(tmp_path: Path) -> None:
    stubborn = tmp_path / "folder-not-a-file"
    stubborn.mkdir()
    manifest = tmp_path / "m.avro"
    manifest.touch()
    rows = [(Phase.CONTENT, str(stubborn), 1), (Phase.MANIFESTS, str(manifest), 1)]

    outcomes = [row for out in job._delete(iter([batch(rows)])) for row in out.to_pylist()]

    assert [row["phase"] for row in outcomes] == ["content"]
    assert outcomes[0]["failed"][0].startswith(f"{stubborn}: ")
    assert manifest.exists()


def test_what_remains_is_named(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.touch()
    rows = [(Phase.CONTENT, str(left), 1), (Phase.CONTENT, str(tmp_path / "gone"), 1)]

    [found] = [row for out in job._remaining(iter([batch(rows)])) for row in out.to_pylist()]

    assert found == {"remaining": 1, "paths": [str(left)]}
