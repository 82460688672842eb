"""Dropped files: each is in its table once, whatever happens in between."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import Iterator

import pytest
import zstandard

from moraine.ingest.filedrop.model import FileCounts
from moraine.ingest.processes import watch_once
from moraine.storage.stores import Storage
from support.filedrop import LARGE, LINE, Scene


def test_files_of_every_kind_get_to_their_tables(scene: Scene) -> None:
    scene.drop("db/a/1.ndjson", b"1\n")
    scene.drop("db/a/2.jsonl", b"2\n")
    scene.drop("db/b/3.json", b"3\n")
    scene.drop("db/b/4.ndjson.gz", gzip.compress(b"4\n") + gzip.compress(b"5\n"))
    scene.drop("x.y/b/5.JSON.zst", zstandard.compress(b"6\n" * 1000))
    ignored = ["db/a/x.csv", "db/a/_x.json", "db/a/.x.json", "db/a/x.json.tmp", "db/x.json",
               "db/a/deep/x.json", "_done/a/x.json", "db/_a/x.json", "x.json", "db/a/x.gz",
               "db/a/empty.json"]  # fmt: skip
    for name in ignored:
        scene.drop(name, b"" if "empty" in name else b"0\n")

    counts = scene.watch()

    assert sorted(scene.writer.written) == [
        ("db.a", b"1\n"), ("db.a", b"2\n"), ("db.b", b"3\n"), ("db.b", b"4\n5\n"),
        ("x.y.b", b"6\n" * 1000),
    ]  # fmt: skip
    assert (counts["taken"], counts["done"], counts["waiting"]) == (5, 5, 0)
    assert set(scene.states().values()) == {"done"}
    key = "filedrop:" + hashlib.sha256(b"3\n").hexdigest()
    assert scene.sql("SELECT door, auto_create FROM ingest_ledger WHERE key = %s", key) == [
        ("filedrop", True)
    ]
    applied = "SELECT requests FROM ingest_totals WHERE door = 'filedrop' AND outcome = 'applied'"
    assert scene.sql(applied) == [(5,)]


def test_unchanged_files_are_not_read_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    chunks = Storage.chunks

    def counted(self: Storage, location: str, size: int) -> Iterator[bytes]:
        read.append(location)
        return chunks(self, location, size)

    monkeypatch.setattr(Storage, "chunks", counted)
    scene.drop("db/t/a.ndjson")
    scene.watch()
    assert len(read) == 2, "once for the hash, once to take it"
    assert scene.watch() == dict.fromkeys(scene.watch(), 0)
    assert len(read) == 2


@pytest.mark.parametrize("settle", ["0s", "0.2s"])
def test_a_kept_file_is_never_taken_again(scene: Scene, settle: str) -> None:
    scene.prefix["settle"] = settle
    file = scene.drop("db/t/a.ndjson")
    scene.watch()
    scene.expire_keys()
    assert scene.sql("SELECT count(*) FROM ingest_ledger") == [(0,)]

    scene.watch()
    file.touch()
    assert scene.watch()["taken"] == 0

    assert len(scene.writer.written) == 1
    assert scene.states() == {"db/t/a.ndjson": "done"}
    scene.drop("db/t/a.ndjson", b'{"a": 2}\n')
    scene.watch()
    assert [body for _, body in scene.writer.written] == [LINE, b'{"a": 2}\n']


def test_the_outcome_of_a_taken_file_is_kept_until_a_watcher_reads_it(scene: Scene) -> None:
    scene.drop("db/t/a.ndjson")
    scene.drop("db/t/bad.ndjson", b"BAD\n")
    scene.watch_alone(run_duration="0s")
    scene.writer.write()
    scene.expire_keys()
    assert set(scene.states().values()) == {"taken"}

    scene.watch()

    assert len(scene.writer.written) == 1
    assert scene.names() == {
        "db/t/a.ndjson", "_failed/db/t/bad.ndjson", "_failed/db/t/bad.ndjson.error.json"
    }  # fmt: skip
    scene.expire_keys()
    assert scene.sql("SELECT count(*) FROM ingest_ledger") == [(0,)]


@pytest.mark.parametrize("content", [LINE, LARGE], ids=["small", "large"])
def test_the_same_bytes_are_written_once(scene: Scene, content: bytes) -> None:
    scene.drop("db/t/a.ndjson", content)
    scene.drop("db/t/b.ndjson", content)
    scene.watch()
    scene.drop("db/t/c.ndjson", content)
    scene.watch()
    assert len(scene.writer.written) == 1
    assert scene.states() == dict.fromkeys(
        ("db/t/a.ndjson", "db/t/b.ndjson", "db/t/c.ndjson"), "done"
    )
    [(replayed,)] = scene.sql("SELECT requests FROM ingest_totals WHERE outcome = 'replayed'")
    assert 1 <= replayed <= 2


def test_a_bad_file_is_set_aside_and_holds_up_no_other(scene: Scene) -> None:
    scene.drop("db/t/0-bad.ndjson", b"{}\nBAD\n")
    scene.drop("db/t/1-broken.ndjson.gz", gzip.compress(LINE)[:-3])
    scene.drop("db/no.table/x.ndjson", b"x\n")
    scene.drop("db/t/2-large.ndjson", b"x" * 5000)
    scene.drop("db/t/3-unpacked.ndjson.gz", gzip.compress(b"x" * 5000))
    scene.drop("db/t/good.ndjson")
    scene.filedrop |= {"max_file_bytes": 4000}

    counts = scene.watch()

    assert scene.writer.written == [("db.t", LINE)]
    assert (counts["done"], counts["refused"], counts["failed"]) == (1, 5, 0)
    bad = {
        "db/t/0-bad.ndjson": "invalid_line",
        "db/t/1-broken.ndjson.gz": "bad_request_body",
        "db/no.table/x.ndjson": "invalid_name",
        "db/t/2-large.ndjson": "payload_too_large",
        "db/t/3-unpacked.ndjson.gz": "payload_too_large",
    }
    aside = {f"_failed/{name}" for name in bad}
    assert scene.names() == aside | {f"{name}.error.json" for name in aside} | {"db/t/good.ndjson"}
    for name, code in bad.items():
        told = json.loads((scene.base / f"_failed/{name}.error.json").read_text())
        assert (told["code"], told["file"]) == (code, name)
        assert told["message"]
    assert (
        json.loads((scene.base / "_failed/db/t/0-bad.ndjson.error.json").read_text())["line"] == 2
    )
    assert scene.states() == {"db/t/good.ndjson": "done"}


def test_what_was_set_aside_can_be_dropped_again(scene: Scene) -> None:
    for _ in range(2):
        scene.drop("db/t/a.ndjson", b"BAD\n")
        scene.watch()
    assert len(scene.writer.rejected) == 2
    tag = hashlib.sha256(b"BAD\n").hexdigest()[:12]
    aside = {"_failed/db/t/a.ndjson", f"_failed/db/t/{tag}-a.ndjson"}
    assert scene.names() == aside | {f"{name}.error.json" for name in aside}


def test_bytes_that_went_to_another_table_are_set_aside(scene: Scene) -> None:
    scene.drop("db/t/a.ndjson")
    scene.watch()
    scene.drop("db/other/a.ndjson")
    scene.watch()
    assert scene.writer.written == [("db.t", LINE)]
    told = json.loads((scene.base / "_failed/db/other/a.ndjson.error.json").read_text())
    assert told["code"] == "idempotency_key_reused"


def test_a_file_that_is_still_being_written_is_left_alone(scene: Scene) -> None:
    scene.prefix["settle"] = "1s"
    for size in range(1, 4):
        scene.drop("db/t/a.ndjson", LINE * size)
        assert scene.watch_alone(run_duration="0s")["taken"] == 0
    assert scene.states() == {"db/t/a.ndjson": "settling"}
    assert scene.watch()["done"] == 1, "a run lasts until it has settled"
    assert scene.writer.written == [("db.t", LINE * 3)]


@pytest.mark.parametrize(
    ("point", "content"),
    [("filedrop.hashed", LINE), ("filedrop.hashed", LARGE), ("ingest.reserved", LARGE)],
)
def test_a_file_that_changes_while_it_is_read_is_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str, content: bytes
) -> None:
    """Between the hash and the reading of it, and in the middle of the reading."""
    file = scene.drop("db/t/a.ndjson", content)
    changed: list[str] = []
    scene.filedrop["run_duration"] = "0s"

    async def change(name: str) -> None:
        if name == point and not changed:
            changed.append(name)
            file.write_bytes(content.swapcase())

    for module in ("filedrop.service", "service"):
        monkeypatch.setattr(f"moraine.ingest.{module}.async_failpoint", change)
    scene.watch_alone()
    scene.writer.write()
    assert changed
    assert scene.writer.written == []
    assert scene.sql("SELECT count(*) FROM ingest_ledger") == [(0,)]

    scene.filedrop["run_duration"] = "20s"
    scene.watch()
    assert scene.writer.written == [("db.t", content.swapcase())]


def test_done_files_are_deleted(scene: Scene) -> None:
    scene.prefix["after"] = "delete"
    scene.drop("db/t/a.ndjson")
    scene.drop("db/t/b.ndjson", b"BAD\n")
    scene.watch()
    assert scene.names() == {"_failed/db/t/b.ndjson", "_failed/db/t/b.ndjson.error.json"}
    assert scene.states() == {}


def test_done_files_are_moved(scene: Scene) -> None:
    scene.prefix |= {"after": "move", "done": f"{scene.base.parent}/archive"}
    scene.drop("db/t/a.ndjson")
    scene.watch()
    assert scene.names() == set()
    assert (scene.base.parent / "archive/db/t/a.ndjson").read_bytes() == LINE
    scene.drop("db/t/a.ndjson", LARGE)
    scene.watch()
    assert len(list((scene.base.parent / "archive/db/t").iterdir())) == 2, "none replaces another"


def test_a_file_that_was_written_again_is_not_deleted_unread(scene: Scene) -> None:
    scene.prefix["after"] = "delete"
    scene.drop("db/t/a.ndjson")
    scene.watch_alone(run_duration="0s")
    scene.drop("db/t/a.ndjson", LARGE)
    scene.writer.write()
    scene.watch()
    assert scene.writer.written == [("db.t", LINE), ("db.t", LARGE)]
    assert scene.names() == set()


def test_rows_of_files_that_are_gone_go(scene: Scene) -> None:
    files = [scene.drop(f"db/t/{number}.ndjson", b"%d\n" % number) for number in range(3)]
    scene.watch()
    files[0].unlink()
    scene.watch()
    assert set(scene.states()) == {"db/t/1.ndjson", "db/t/2.ndjson"}


def test_a_listing_that_misses_a_file_does_not_forget_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.drop("db/t/a.ndjson")
    scene.watch()
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "files_below", lambda *_: iter(()))
        scene.watch()
    scene.expire_keys()
    scene.watch()
    assert len(scene.writer.written) == 1


def test_too_much_waiting_holds_files_back(scene: Scene) -> None:
    scene.ingest["max_waiting_requests"] = 1
    for number in range(3):
        scene.drop(f"db/t/{number}.ndjson", b"%d\n" % number)
    scene.filedrop |= {"files_at_once": 1}
    scene.sql(
        "INSERT INTO ingest_ledger (key, door, database_name, table_name, auto_create,"
        " schema_evolve, state, fingerprint) VALUES"
        " ('k', 'rest', 'db', 'u', false, false, 'staged', repeat('0', 64))"
    )
    counts = scene.watch_alone(run_duration="0s")
    assert (counts["taken"], counts["settling"], counts["refused"]) == (0, 3, 0)
    scene.sql("DELETE FROM ingest_ledger")
    assert scene.watch()["done"] == 3


def test_a_prefix_that_cannot_be_read_fails_the_run_and_holds_up_no_other(scene: Scene) -> None:
    scene.drop("db/t/a.ndjson")
    scene.filedrop["prefixes"] = {
        "closed": {"location": "s3://no-such-bucket/x"},
        "main": {"location": scene.location, "settle": "0s"},
    }
    scene.storage = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "x", "s3.anonymous": "true"}
    with pytest.raises(Exception, match="no-such-bucket"):
        scene.watch()
    assert scene.writer.written == [("db.t", LINE)]


def test_two_at_once_are_harmless(scene: Scene) -> None:
    for number in range(20):
        scene.drop(f"db/t/{number}.ndjson", b"%d\n" % number)

    async def both() -> list[FileCounts]:
        settings = scene.settings()
        runs = [watch_once(scene.url, settings, lambda _: {}) for _ in range(2)]
        return list(await asyncio.gather(*runs))

    with scene.writer.running():
        counts = asyncio.run(both())
    assert sorted(count.done for count in counts) == [0, 20]
    assert len(scene.writer.written) == 20
