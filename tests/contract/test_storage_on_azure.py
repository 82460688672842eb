"""What Azure alone has: requests for many blobs that fail for some, and shared signatures."""

from __future__ import annotations

import uuid

import pytest

from moraine.errors import StorageRefused
from moraine.storage.credentials import Credentials
from moraine.storage.stores import DELETED, MISSING, Failure
from support.azurite import Azurite
from support.storage_places import AzurePlace


@pytest.fixture
def container(azurite: Azurite) -> str:
    return azurite.create_container(f"lake-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def place(azurite: Azurite, container: str) -> AzurePlace:
    return AzurePlace(azurite, Credentials(azurite.properties()), container)


def test_azure_storage_deletes_the_other_blobs_if_one_is_missing(place: AzurePlace) -> None:
    paths = place.put(*(f"data/{number}" for number in range(600)))
    gone = f"{place.base}/data/gone"
    assert place.storage.delete([*paths[:300], gone, *paths[300:]]) == [DELETED] * 601
    assert place.names() == set()
    assert place.storage.delete([gone]) == [MISSING]


def test_azure_storage_deletes_the_other_blobs_if_one_is_protected(
    azurite: Azurite, place: AzurePlace
) -> None:
    names = [f"data/{number}" for number in range(300)]
    paths = place.put(*names)
    azurite.lease(place.container, "wh/t/data/7")

    outcomes = place.storage.delete(paths)

    refused = outcomes.pop(7)
    assert isinstance(refused, Failure)
    assert refused.refused, "no retry helps"
    assert "412" in refused.reason
    assert outcomes == [DELETED] * 299
    assert place.names() == {"data/7"}
    assert place.storage.remaining(paths) == [paths[7]]


def test_azure_storage_shared_signature_allows_what_it_says(
    azurite: Azurite, container: str
) -> None:
    place = AzurePlace(azurite, Credentials(azurite.shared(container, "rdl")), container)
    paths = place.put("a", "b", "c", content=b"four")
    assert place.storage.read(paths[0]) == b"four"
    assert place.storage.remaining(paths) == paths
    with pytest.raises(StorageRefused, match="403") as refused:
        place.storage.write(paths[0], b"other")
    assert "sig=" not in str(refused.value)
    assert place.storage.delete(paths) == [DELETED] * 3
    assert place.names() == set()


def test_azure_storage_signature_for_reading_deletes_nothing(
    azurite: Azurite, container: str
) -> None:
    place = AzurePlace(azurite, Credentials(azurite.shared(container, "rl")), container)
    paths = place.put("a", "b", "c")
    outcomes = place.storage.delete(paths)
    assert all(isinstance(found, Failure) and found.refused for found in outcomes), outcomes
    assert place.names() == {"a", "b", "c"}


def test_azure_storage_key_that_is_wrong_is_refused_and_not_shown(
    azurite: Azurite, place: AzurePlace
) -> None:
    paths = place.put("a", "b")
    wrong = AzurePlace(
        azurite, Credentials(Azurite(azurite.port).properties()), place.container
    ).storage
    outcomes = wrong.delete(paths)
    assert all(isinstance(found, Failure) and found.refused for found in outcomes), outcomes
    with pytest.raises(StorageRefused):
        wrong.read(paths[0])
    assert place.names() == {"a", "b"}
