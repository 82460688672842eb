from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from xml.etree import ElementTree

import pytest

from moraine.local import jars as module
from moraine.local.jars import Jars, read_checksums
from moraine.local.java import Java
from moraine.local.part import Event, StackError, silent

JAVA = Java(Path("/nowhere"))
CONTENT = {
    "spark/runtime-1.jar": b"one",
    "catalog/server-1.jar": b"two",
    "nessie/runner-1.jar": b"three",
}
CHECKSUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


class Repository:
    """Stands in for Ivy and the network."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.asked: list[list[str]] = []

    @property
    def downloads(self) -> int:
        return len(self.asked)

    def __call__(
        self,
        java: Java,
        target: Path,
        configurations: Collection[str],
        show: Callable[[int], None],
        settings: Path | None,
    ) -> None:
        self.asked.append(list(configurations))
        time.sleep(0.05)
        wanted = {n: c for n, c in self.content.items() if n.split("/")[0] in configurations}
        for done, (name, content) in enumerate(wanted.items(), 1):
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
            show(2 * done)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository(dict(CONTENT))
    monkeypatch.setattr(module, "_run_ivy", repository)
    return repository


def test_jars_are_fetched_once(tmp_path: Path, repository: Repository) -> None:
    events: list[Event] = []
    for _ in range(2):
        Jars(tmp_path / "cache", CHECKSUMS).fetch(JAVA, events.append)
    assert repository.downloads == 1
    assert [(e.done, e.total) for e in events if e.total] == [(2, 4), (4, 4)]
    found = Jars(tmp_path / "cache", CHECKSUMS).class_path("spark")
    assert [path.read_bytes() for path in found] == [b"one"]


def test_jars_are_fetched_only_for_configurations_that_lack_one(
    tmp_path: Path, repository: Repository
) -> None:
    jars = Jars(tmp_path, CHECKSUMS)
    jars.fetch(JAVA, silent)
    assert repository.asked == [["catalog", "spark"]]
    assert not (tmp_path / "nessie").exists()
    jars.fetch(JAVA, silent, configurations={"spark", "nessie"})
    assert repository.asked[1:] == [["nessie"]]
    assert (tmp_path / "nessie" / "runner-1.jar").read_bytes() == b"three"


def test_jars_fetched_on_demand_with_a_wrong_checksum_leave_nothing(
    tmp_path: Path, repository: Repository
) -> None:
    repository.content["nessie/runner-1.jar"] = b"evil"
    with pytest.raises(StackError, match=r"nessie/runner-1.jar has the checksum .* pinned"):
        Jars(tmp_path, CHECKSUMS).fetch(JAVA, silent, configurations={"nessie"})
    assert not (tmp_path / "nessie" / "runner-1.jar").exists()


def test_jar_with_a_wrong_checksum_is_named_and_leaves_nothing(
    tmp_path: Path, repository: Repository
) -> None:
    repository.content["catalog/server-1.jar"] = b"evil"
    with pytest.raises(StackError, match=r"catalog/server-1.jar has the checksum .* pinned"):
        Jars(tmp_path, CHECKSUMS).fetch(JAVA, silent)
    assert not (tmp_path / "catalog" / "server-1.jar").exists()
    assert not list(tmp_path.glob(".partial*"))


def test_jar_that_the_repository_lacks_is_named(tmp_path: Path, repository: Repository) -> None:
    del repository.content["spark/runtime-1.jar"]
    with pytest.raises(StackError, match=r"has no spark/runtime-1.jar"):
        Jars(tmp_path, CHECKSUMS).fetch(JAVA, silent)


def test_jar_that_is_damaged_in_the_cache_is_fetched_again(
    tmp_path: Path, repository: Repository
) -> None:
    jars = Jars(tmp_path, CHECKSUMS)
    jars.fetch(JAVA, silent)
    (tmp_path / "spark" / "runtime-1.jar").write_bytes(b"on")
    jars.fetch(JAVA, silent)
    assert (tmp_path / "spark" / "runtime-1.jar").read_bytes() == b"one"
    assert repository.downloads == 2


def test_jars_are_downloaded_once_by_two_concurrent_fetches(
    tmp_path: Path, repository: Repository
) -> None:
    jars = Jars(tmp_path, CHECKSUMS)
    threads = [threading.Thread(target=jars.fetch, args=(JAVA, silent)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repository.downloads == 1


def test_jars_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Jars.pinned(None).cache == tmp_path / "moraine" / "jars"


def test_jars_pinned_list_names_every_configuration() -> None:
    folder = Path(module.__file__).parent
    wanted = ElementTree.parse(folder / "ivy.xml").findall("configurations/conf")
    checksums = read_checksums(folder / "jars.sha256")
    assert {name.split("/")[0] for name in checksums} == {conf.attrib["name"] for conf in wanted}
    assert all(len(digest) == 64 for digest in checksums.values())
