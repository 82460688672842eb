"""What a Storage promises, on the local disk, on a real S3 and on a real Azure Blob API."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from moraine.errors import StorageRefused
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots
from moraine.storage.stores import (
    DELETED,
    MISSING,
    UNSENT,
    Failure,
    Outcome,
    Storage,
    StorageLimits,
)
from support.azurite import Azurite
from support.seaweedfs import SeaweedFS, allow, running_seaweedfs
from support.storage_places import AzurePlace, DiskPlace, Place, S3Place


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def bucket(seaweedfs: SeaweedFS) -> str:
    return seaweedfs.create_bucket(f"lake-{uuid.uuid4().hex[:12]}")


@pytest.fixture(params=["disk", "s3", "azure"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return DiskPlace(tmp_path)
    if request.param == "azure":
        azurite: Azurite = request.getfixturevalue("azurite")
        container = azurite.create_container(f"lake-{uuid.uuid4().hex[:12]}")
        return AzurePlace(azurite, Credentials(azurite.properties()), container)
    server: SeaweedFS = request.getfixturevalue("seaweedfs")
    bucket: str = request.getfixturevalue("bucket")
    return S3Place(server, Credentials(server.properties()), bucket)


NAMES = [
    "plain",
    "data/p=1/00000-1.parquet",
    "with space",
    "per%cent%20twenty",
    "pl+us",
    "ha#sh",
    "quest?ion",
    "ünïcödé/😀",
    "a&b<c>'d\"",
    ".hidden",
]


def test_storage_does_not_decode_names(place: Place) -> None:
    paths = place.put(*NAMES, content=b"four")
    assert place.names() == set(NAMES)

    assert [place.storage.read(path) for path in paths] == [b"four"] * len(NAMES)
    assert [place.storage.size(path) for path in paths] == [4] * len(NAMES)
    assert place.storage.remaining(paths) == paths
    assert all(Roots.of([place.base]).contains(path) for path in paths)
    assert place.storage.delete(paths) == [DELETED] * len(NAMES)
    assert place.storage.remaining(paths) == []
    assert place.names() == set()


def test_storage_reads_no_file_that_is_too_large(place: Place) -> None:
    [path] = place.put("large", content=b"four")
    assert place.storage.read(path, 4) == b"four"
    with pytest.raises(StorageRefused, match="larger than 3 bytes"):
        place.storage.read(path, 3)


def test_storage_delete_leaves_the_neighbours_of_a_file(place: Place) -> None:
    place.put("a b", "a%20b", "a+b", "a", "A b", "a%2520b")
    assert place.storage.delete([f"{place.base}/a%20b", f"{place.base}/a+b"]) == [DELETED] * 2
    assert place.names() == {"a b", "a", "A b", "a%2520b"}


@pytest.mark.parametrize("place", ["disk", "s3"], indirect=True)
def test_storage_accepts_names_with_empty_parts(place: Place) -> None:
    # Both this S3 and a disk take `//` for `/`.
    place.put("data/x", "data/y", "z")
    paths = [f"{place.base}//data//x", f"{place.base}/data//y", f"{place.base}//z"]
    assert place.storage.size(paths[0]) == 1
    assert place.storage.remaining(paths) == paths
    assert place.storage.delete(paths) == [DELETED] * 3
    assert place.names() == set()


def test_storage_delete_of_missing_files_is_no_failure(place: Place) -> None:
    [there] = place.put("there")
    gone = [f"{place.base}/gone", f"{place.base}/no/such/folder/gone"]

    assert place.storage.read(gone[0]) is None
    assert place.storage.size(gone[1]) is None
    outcomes = place.storage.delete([gone[0], there, gone[1]])

    assert outcomes[1] == DELETED
    assert set(outcomes) <= {DELETED, MISSING}, "a bulk request to S3 does not tell"
    assert place.names() == set()
    assert set(place.storage.delete([*gone, there])) <= {DELETED, MISSING}, "once more"


def test_storage_delete_of_many_files_in_several_batches(place: Place) -> None:
    count = place.batch * 5 // 2
    names = [f"data/p={number % 7}/{number}" for number in range(count)]
    paths = place.put(*names)
    place.put("data/p=0/neighbour")
    seen: list[int] = []
    asked = itertools.count()

    def tick_off(indexes: list[int], outcomes: list[Outcome]) -> None:
        assert len(indexes) <= place.batch
        assert outcomes == [DELETED] * len(indexes)
        seen.extend(indexes)

    outcomes = place.storage.delete(paths, on_batch=tick_off, permit=lambda: next(asked) >= 0)

    assert outcomes == [DELETED] * count
    assert sorted(seen) == list(range(count))
    assert next(asked) == 3, "once for each batch"
    assert place.names() == {"data/p=0/neighbour"}
    assert place.storage.remaining(paths) == []


def test_storage_remaining_finds_the_files_left_among_many(place: Place) -> None:
    paths = place.put(*(f"data/{number}" for number in range(100)))
    gone, left = paths[::2], paths[1::2]
    place.storage.delete(gone)
    assert place.storage.remaining(paths) == left
    assert place.storage.remaining([*gone[:3], left[0]]) == [left[0]]


def test_storage_deletes_nothing_without_a_permit(place: Place) -> None:
    paths = place.put("a", "b")
    assert place.storage.delete(paths, permit=lambda: False) == [UNSENT] * 2
    assert place.names() == {"a", "b"}


def test_storage_delete_serves_many_stores_in_one_call(
    seaweedfs: SeaweedFS, bucket: str, tmp_path: Path
) -> None:
    other = seaweedfs.create_bucket(f"{bucket}-2")
    credentials = Credentials(seaweedfs.properties())
    places: list[Place] = [
        S3Place(seaweedfs, credentials, bucket),
        DiskPlace(tmp_path),
        S3Place(seaweedfs, credentials, other),
    ]
    paths = [path for name in ("a", "b") for place in places for path in place.put(name)]
    paths[0] = paths[0].replace("s3:", "s3a:")

    assert places[0].storage.remaining(paths) == paths
    assert places[0].storage.delete(paths) == [DELETED] * 6

    assert [place.names() for place in places] == [set()] * 3
    assert places[0].storage.remaining(paths) == []


# --- Files that are dropped, read and moved --------------------------------------------------


def test_storage_list_has_what_is_below_the_folder(place: Place) -> None:
    names = [*NAMES, "data/p=1/deep/er", "data-2/x"]
    place.put(*names, content=b"four")

    found = [file for page in place.storage.files_below(f"{place.base}/") for file in page]

    assert {file.location for file in found} == {f"{place.base}/{name}" for name in names}
    assert {file.size for file in found} == {4}
    assert found == [place.storage.look(file.location) for file in found], "one version, two ways"
    below = [f.location for page in place.storage.files_below(f"{place.base}/data") for f in page]
    assert sorted(below) == [
        f"{place.base}/data/p=1/{name}" for name in ("00000-1.parquet", "deep/er")
    ]
    assert place.storage.folders_in(place.base) == ["data", "data-2", "ünïcödé"]


def test_storage_list_of_a_missing_folder_is_empty(place: Place) -> None:
    assert place.storage.folders_in(f"{place.base}/none") == []
    assert list(place.storage.files_below(f"{place.base}/none")) == []
    assert place.storage.look(f"{place.base}/none/x") is None
    assert list(place.storage.chunks(f"{place.base}/none/x", 10)) == []


def test_storage_list_has_pages(place: Place) -> None:
    place.put(*(f"data/{number}" for number in range(1100)))
    pages = list(place.storage.files_below(place.base))
    assert max(map(len, pages)) <= 1000
    assert len({file.location for page in pages for file in page}) == 1100


def test_storage_file_that_is_written_again_has_another_version(place: Place) -> None:
    [location] = place.put("x", content=b"old")
    before = place.storage.look(location)
    place.storage.write(location, b"new")
    after = place.storage.look(location)
    assert before is not None
    assert after is not None
    assert before.version != after.version
    assert place.storage.read(location) == b"new"


def test_storage_file_is_read_part_by_part(place: Place) -> None:
    content = os.urandom(100_001)
    [location] = place.put("x", content=content)
    parts = list(place.storage.chunks(location, len(content), chunk_bytes=40_000))
    assert b"".join(parts) == content
    assert max(map(len, parts)) <= 40_000
    assert b"".join(place.storage.chunks(location, 50_000, chunk_bytes=40_000)) == content[:50_000]


def test_storage_file_is_moved_in_place_of_another(place: Place) -> None:
    [source, target] = place.put("new/a b%20c", "x")
    place.put("new/a b%20c", content=b"moved")
    assert place.storage.move(source, target)
    assert place.storage.read(target) == b"moved"
    assert place.storage.move(target, f"{place.base}/_done/p=1/ünï")
    assert place.names() == {"_done/p=1/ünï"}
    assert not place.storage.move(source, target), "it is gone"
    assert place.names() == {"_done/p=1/ünï"}


def test_storage_file_that_is_small_is_written(place: Place) -> None:
    location = f"{place.base}/_failed/a/b.error.json"
    place.storage.write(location, b"{}")
    place.storage.write(location, b"[]")
    assert place.storage.read(location) == b"[]"
    assert place.names() == {"_failed/a/b.error.json"}


# --- S3 alone -------------------------------------------------------------------------------


def vended(server: SeaweedFS, bucket: str, *prefixes: str, seconds: int = 900) -> Credentials:
    actions = ["s3:GetObject", "s3:DeleteObject"]
    keys = server.assume_role(allow(actions, bucket, *prefixes), seconds)
    return Credentials.from_load_table(
        {
            "config": server.place(),
            "storage-credentials": [{"prefix": f"s3://{bucket}/", "config": keys.properties()}],
        }
    )


def test_storage_session_policy_decides_key_by_key(seaweedfs: SeaweedFS, bucket: str) -> None:
    place = S3Place(seaweedfs, vended(seaweedfs, bucket, "wh/t/mine/"), bucket)
    names = [f"{owner}/{number}" for number in range(40) for owner in ("mine", "theirs")]
    paths = place.put(*names)

    outcomes = place.storage.delete(paths)

    refused = Failure("AccessDenied", refused=True)
    assert outcomes == [DELETED if "mine" in name else refused for name in names]
    assert place.names() == {name for name in names if "theirs" in name}
    with pytest.raises(StorageRefused, match="theirs/0"):
        place.storage.read(f"{place.base}/theirs/0")


def test_storage_opens_each_location_with_its_own_keys(seaweedfs: SeaweedFS, bucket: str) -> None:
    one, other = (
        seaweedfs.assume_role(allow(["s3:DeleteObject"], bucket, f"wh/t/{name}/"), 900)
        for name in ("one", "other")
    )
    credentials = Credentials.from_load_table(
        {
            "config": seaweedfs.place(),
            "storage-credentials": [
                {"prefix": f"s3://{bucket}/wh", "config": one.properties()},
                {"prefix": f"s3a://{bucket}/wh/t/other", "config": other.properties()},
            ],
        }
    )
    place = S3Place(seaweedfs, credentials, bucket)
    paths = place.put("one/a", "other/a", "third/a")
    outcomes = place.storage.delete(paths)
    assert outcomes == [DELETED, DELETED, Failure("AccessDenied", refused=True)]


def test_storage_remaining_lists_what_it_may_not_read(seaweedfs: SeaweedFS, bucket: str) -> None:
    keys = seaweedfs.assume_role(allow(["s3:DeleteObject"], bucket), 900)
    credentials = Credentials(seaweedfs.place() | keys.properties())
    place = S3Place(seaweedfs, credentials, bucket)
    [there] = place.put("a/there")
    gone = f"{place.base}/a/gone"
    assert place.storage.remaining([gone, there]) == [there]
    assert place.storage.size(gone) is None
    with pytest.raises(StorageRefused):
        place.storage.size(there)


def test_storage_credentials_are_renewed_in_the_middle_of_a_delete(
    seaweedfs: SeaweedFS, bucket: str
) -> None:
    """Real ones that really end: three lifetimes pass while one delete goes on."""
    lifetime = 2
    renewals: list[float] = []

    def renew() -> Credentials:
        renewals.append(time.monotonic())
        return vended(seaweedfs, bucket, "wh/t/", seconds=lifetime)

    place = S3Place(seaweedfs, Credentials(), bucket)
    paths = place.put(*(f"data/{number}" for number in range(120)))
    old = renew()
    storage = Storage(old, renew, limits=StorageLimits(batch_size=5, concurrency=2))

    def slowly() -> bool:
        time.sleep(lifetime / 7)
        return True

    assert storage.delete(paths, permit=slowly) == [DELETED] * 120
    assert place.names() == set()
    assert len(renewals) >= 4
    late = place.put("late")
    outcomes = Storage(old, limits=StorageLimits(retries=0)).delete(late)
    assert isinstance(outcomes[0], Failure), "the old ones had ended"


def test_storage_credentials_that_expire_without_notice_are_renewed(
    seaweedfs: SeaweedFS, bucket: str
) -> None:
    """Keys without a stated expiry: the store's answer shows that they expired."""
    ended = seaweedfs.assume_role(None, -60).properties()
    del ended["s3.session-token-expires-at-ms"]
    storage = Storage(
        Credentials(seaweedfs.place() | ended),
        lambda: vended(seaweedfs, bucket, "wh/t/"),
        limits=StorageLimits(batch_size=2),
    )
    place = S3Place(seaweedfs, Credentials(), bucket)
    paths = place.put("a", "b", "c", "d", "e")
    assert storage.delete(paths) == [DELETED] * 5
    assert place.names() == set()


def test_storage_secret_that_is_wrong_is_refused_and_not_shown(
    seaweedfs: SeaweedFS, bucket: str
) -> None:
    place = S3Place(seaweedfs, Credentials(), bucket)
    paths = place.put("a", "b")
    wrong = seaweedfs.properties() | {"s3.secret-access-key": "hush-hush"}
    storage = Storage(Credentials(wrong))
    outcomes = storage.delete(paths)
    assert outcomes == [Failure("HTTP 403 SignatureDoesNotMatch", refused=True)] * 2
    with pytest.raises(StorageRefused) as raised:
        storage.read(paths[0])
    assert "hush" not in f"{raised.value!r} {outcomes} {storage!r}"
    assert place.names() == {"a", "b"}
