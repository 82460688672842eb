"""Dropped files whose watcher is killed: each is in its table once."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest

from support.filedrop import LARGE, LINE, Scene

TAKING = [
    "filedrop.hashed",
    "filedrop.marked",
    "ingest.reserved",
    "ingest.staged",
    "filedrop.taken",
]


@pytest.mark.parametrize("point", TAKING)
def test_killed_while_a_file_is_taken(scene: Scene, point: str) -> None:
    scene.drop("db/t/a.ndjson", LARGE)
    scene.killed_at(point)
    scene.writer.write()
    scene.let_reservations_end()
    scene.watch()
    assert scene.writer.written == [("db.t", LARGE)]
    assert scene.states() == {"db/t/a.ndjson": "done"}


@pytest.mark.parametrize(
    ("point", "after", "content"),
    [
        ("filedrop.settled", "keep", LINE),
        ("filedrop.settled", "delete", LINE),
        ("filedrop.settled", "move", b"BAD\n"),
        ("filedrop.reported", "keep", b"BAD\n"),
        ("filedrop.moved", "delete", LINE),
        ("filedrop.moved", "move", LINE),
        ("filedrop.moved", "keep", b"BAD\n"),
    ],
)
def test_killed_while_a_file_is_put_away(
    scene: Scene, point: str, after: str, content: bytes
) -> None:
    scene.prefix["after"] = after
    scene.drop("db/t/a.ndjson", content)
    with scene.writer.running():
        scene.killed_at(point)
    scene.expire_keys()
    scene.watch()

    left = {"keep": {"db/t/a.ndjson"}, "delete": set(), "move": {"_done/db/t/a.ndjson"}}[after]
    if content == LINE:
        assert scene.writer.written == [("db.t", LINE)]
        assert scene.names() == left
    else:
        assert len(scene.writer.rejected) == 1
        assert scene.names() == {"_failed/db/t/a.ndjson", "_failed/db/t/a.ndjson.error.json"}
    assert scene.states() == (
        dict.fromkeys(left, "done") if after == "keep" and content == LINE else {}
    )


def test_killed_again_and_again_while_files_are_dropped(scene: Scene) -> None:
    scene.prefix |= {"after": "move", "settle": "0.2s"}
    good: list[bytes] = []
    bad = 0
    numbers = itertools.count(1)
    with scene.writer.running():
        for pause in (1.0, 1.3, 1.1, 1.5, 0.9, 1.2, 1.6, 1.4):
            with scene.process() as process:
                until = time.monotonic() + pause
                while time.monotonic() < until:
                    number = next(numbers)
                    body = b'{"number": %d}\n' % number * (1 if number % 3 else 100)
                    if number % 10:
                        good.append(body)
                    else:
                        body, bad = body + b"BAD\n", bad + 1
                    scene.drop(f"db/t{number % 3}/{number}.ndjson", body)
                    time.sleep(0.02)
                process.kill()
            scene.let_reservations_end()
        scene.watch_alone()
        scene.watch_alone()  # forgets what was moved, but not yet forgotten, when it was killed

    assert sorted(body for _, body in scene.writer.written) == sorted(good)
    assert len(scene.writer.rejected) == bad
    folders = Counter(name.split("/")[0] for name in scene.names())
    assert folders == {"_done": len(good), "_failed": 2 * bad}
    assert scene.states() == {}
