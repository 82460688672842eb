"""Purges on an object store, as a principal that gets vended keys for one table at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from moraine.errors import http_status_of
from moraine.settings import CatalogSettings
from moraine.tasks.model import Claim, Status, Task
from support.drivers import Drivers
from support.fault_proxy import (
    FaultProxy,
    delay,
    fail_keys,
    refuse,
    reset_after,
    reset_before,
)
from support.platform import Failpoints
from support.purges import ends_of_attempts
from support.seaweedfs import SeaweedFS
from support.vending import VendingCatalog
from support.waiting import wait_for

from .conftest import NAMESPACE, Bench


def deletions(proxy: FaultProxy, objects: set[str]) -> set[int]:
    """How often each of these objects was deleted, as the store confirmed it."""
    return {proxy.deleted[uri] for uri in objects}


@pytest.mark.parametrize("vends_in", [{"config"}, {"storage-credentials"}])
def test_purge_on_s3_with_vended_keys(
    bench: Bench, vending_catalog: VendingCatalog, fault_proxy: FaultProxy, vends_in: set[str]
) -> None:
    vending_catalog.vends_in = vends_in
    name, beside = bench.write(snapshots=3, files_each=4), bench.write()
    before, others = bench.objects(name), bench.objects(beside)
    fault_proxy.clear()

    task = bench.attempt(bench.submit(name))

    assert task.status is Status.SUCCESS, task
    assert bench.objects(name) == set()
    assert bench.objects(beside) == others
    result = task.result or {}
    assert result["files_deleted"] == result["files_found"] == len(before)
    assert result["by_kind"]["position_deletes"]["files"] == 1
    assert deletions(fault_proxy, before) == {1}
    assert sum(fault_proxy.deleted.values()) == len(before), "and nothing else"
    # Other tables' keys were asked for too, to read which files those name.
    own = [vend for vend in vending_catalog.vends if all(name in p for p in vend.prefixes)]
    assert set(fault_proxy.access_keys("DeleteObjects?")) <= {vend.access_key for vend in own}


def test_purge_on_s3_of_a_table_that_writes_to_several_places(
    bench: Bench, fault_proxy: FaultProxy
) -> None:
    """Each place has keys of its own: the longest matching prefix wins."""
    name = bench.write(
        **{
            "write.data.path": "s3://lake/elsewhere/data of orders+1",
            "write.metadata.path": "s3a://lake/elsewhere/metadata%20of",
        }
    )
    elsewhere = bench.s3.keys_in("lake", "elsewhere/")
    assert elsewhere
    task = bench.attempt(bench.submit(name))
    assert task.status is Status.SUCCESS, task
    assert bench.s3.keys_in("lake", "elsewhere/") == set()
    assert bench.objects(name) == set()


def test_purge_on_s3_lasts_longer_than_three_lifetimes_of_its_keys(
    bench: Bench, vending_catalog: VendingCatalog, fault_proxy: FaultProxy
) -> None:
    vending_catalog.credential_seconds = 4
    vending_catalog.token_seconds = 3
    name = bench.write(snapshots=2, files_each=20)
    before = bench.objects(name)
    fault_proxy.clear()
    fault_proxy.add(delay(0.8, operation="DeleteObjects"))

    task = bench.attempt(bench.submit(name), keys_per_request=2, requests_at_once=1)

    assert (task.status, task.attempt_count) == (Status.SUCCESS, 1), bench.history(task.task_id)
    assert bench.objects(name) == set()
    assert deletions(fault_proxy, before) == {1}
    assert len(set(fault_proxy.access_keys("DeleteObjects"))) >= 4
    assert fault_proxy.count("DeleteObjects", status=400) == 0, "renewed before they expired"
    assert (task.result or {})["seconds"]["delete"] > 12


def test_purge_on_s3_by_a_client_that_has_a_key_and_no_secret(
    bench: Bench,
    vending_catalog: VendingCatalog,
    fault_proxy: FaultProxy,
    principal: CatalogSettings,
    tmp_path: Path,
) -> None:
    """Iceberg's client in Spark, which lists the files, is handed a token."""
    key = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "client.key"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    vending_catalog.client_key = key.public_key()
    given = principal.revealed()
    given["auth"] |= {
        "client_secret": "",
        "client_auth": "private_key_jwt",
        "private_key": str(file),
    }
    bench.settings = bench.settings.model_copy(
        update={"catalogs": {"lake": CatalogSettings.model_validate(given)}}
    )
    name = bench.write(snapshots=2, files_each=4)
    before = bench.objects(name)
    fault_proxy.clear()

    task = bench.attempt(bench.submit(name), small_table_files=0)

    assert (task.status, task.attempt_count) == (Status.SUCCESS, 1), bench.history(task.task_id)
    assert deletions(fault_proxy, before) == {1}
    assert vending_catalog.tokens_issued >= 1


@pytest.mark.parametrize("small_table_files", [0, 1000], ids=["executors", "worker"])
@pytest.mark.parametrize("refuses", [False, True], ids=["silent", "refusing"])
def test_purge_on_s3_with_a_catalog_that_vends_nothing(
    bench: Bench,
    vending_catalog: VendingCatalog,
    seaweedfs: SeaweedFS,
    principal: CatalogSettings,
    refuses: bool,
    small_table_files: int,
) -> None:
    vending_catalog.vend_nothing()
    vending_catalog.refuses_to_vend = refuses
    given = principal.revealed() | {"storage": seaweedfs.properties()}
    bench.settings = bench.settings.model_copy(
        update={"catalogs": {"lake": CatalogSettings.model_validate(given)}}
    )
    name = bench.write()
    task = bench.attempt(bench.submit(name), small_table_files=small_table_files)
    assert task.status is Status.SUCCESS, task
    assert bench.objects(name) == set()


def test_purge_on_s3_writes_no_secret_to_the_ledger(
    bench: Bench,
    vending_catalog: VendingCatalog,
    fault_proxy: FaultProxy,
    ledger_url: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fault_proxy.add(refuse("AccessDenied", operation="DeleteObjects?"))
    task = bench.attempt(bench.submit(bench.write()))
    assert task.error_code == "STORAGE_REFUSED"
    with psycopg.connect(ledger_url) as database:
        tables = ("tasks", "task_history", "task_slices")
        ledger = "".join(
            str(database.execute(f"SELECT * FROM {table}").fetchall()) for table in tables
        )
    shown = ledger + "".join(capfd.readouterr())
    assert str(task.task_id) in shown
    secrets = {vending_catalog.client_secret}
    secrets |= {vend.access_key for vend in vending_catalog.vends}
    assert not [secret for secret in secrets if secret in shown]


# --- What stores do -------------------------------------------------------------------------


def test_purge_on_s3_ends_with_a_refused_key_and_names_it(
    bench: Bench, fault_proxy: FaultProxy
) -> None:
    name = bench.write(files_each=10)
    before = bench.objects(name)
    kept = sorted(uri for uri in before if "/data/" in uri)[3]
    key = kept.removeprefix("s3://lake/")
    fault_proxy.add(fail_keys("AccessDenied", key=key))
    task_id = bench.submit(name)

    task = bench.attempt(task_id)

    assert (task.status, task.error_code) == (Status.FAILURE, "STORAGE_REFUSED")
    failed = (task.result or {})["failed"]
    assert failed["files"] == 1
    assert [one["path"] for one in failed["paths"]] == [kept]
    assert "AccessDenied" in failed["paths"][0]["reason"]
    left = bench.objects(name)
    assert {uri for uri in left if "/data/" in uri} == {kept}
    assert left - {kept} == {uri for uri in before if "/metadata/" in uri}
    result = task.result or {}
    assert result["files_deleted"] == len(before) - len(left)
    assert result["files_left"] == len(left)

    fault_proxy.clear()
    bench.store.advance(_claim_of(task), Status.SUBMITTED, "re-driven on request")
    task = bench.attempt(task_id)
    assert task.status is Status.SUCCESS, task
    assert bench.objects(name) == set()
    assert (task.result or {})["files_deleted"] == len(before)


@pytest.mark.parametrize("refused", [r"-m0\.avro$", r"snap-.*\.avro$"])
def test_purge_on_s3_ends_if_metadata_may_not_be_read(
    bench: Bench, fault_proxy: FaultProxy, refused: str
) -> None:
    """Iceberg's reader finds the one out, the search for unknown sizes the other."""
    name = bench.write()
    before = bench.objects(name)
    operation = "GetObject|HeadObject" if "m0" in refused else "HeadObject|ListObjects"
    fault_proxy.add(refuse("AccessDenied", operation=operation, key=f"{name}/.*{refused}"))
    task = bench.attempt(bench.submit(name))
    assert (task.status, task.error_code) == (Status.FAILURE, "STORAGE_REFUSED"), task
    assert bench.objects(name) == before


@pytest.mark.parametrize(
    "faults",
    [
        [refuse("SlowDown", operation="DeleteObjects", times=4)],
        [refuse("TooManyRequests", operation="DeleteObjects", times=4)],
        [fail_keys("SlowDown", key=r"/data/", times=1)],
        [reset_before(operation="DeleteObjects", times=2)],
        [reset_after(operation="DeleteObjects", times=2)],
        [refuse("InternalError", operation="DeleteObjects|HeadObject", times=3)],
    ],
    ids=["503", "429", "throttled keys", "reset before", "reset after", "500"],
)
def test_purge_on_s3_retries_a_transient_error_within_the_attempt(
    bench: Bench, fault_proxy: FaultProxy, faults: list[object]
) -> None:
    name = bench.write(files_each=4)
    fault_proxy.clear()
    fault_proxy.add(*faults)  # type: ignore[arg-type]

    task = bench.attempt(bench.submit(name), keys_per_request=5)

    assert (task.status, task.attempt_count) == (Status.SUCCESS, 1), bench.history(task.task_id)
    assert bench.objects(name) == set()
    assert fault_proxy.count("DeleteObjects") > 2


def test_purge_on_s3_finds_and_deletes_a_file_that_comes_back_in_the_next_attempt(
    bench: Bench, failpoints: Failpoints
) -> None:
    name = bench.write()
    back = sorted(uri for uri in bench.objects(name) if "/data/" in uri)[0]
    point = "purge.delete.old_metadata.after"
    failpoints.hold_at(point)
    task_id = bench.submit(name)
    attempt = threading.Thread(target=bench.attempt, args=(task_id,))
    attempt.start()
    failpoints.wait_until_hit(point)
    bench.s3.client().put_object(Bucket="lake", Key=back.removeprefix("s3://lake/"), Body=b"x")
    failpoints.release(point)
    attempt.join(timeout=60)

    task = bench.store.get(task_id)
    assert (task.status, task.error_code) == (Status.RETRY_SCHEDULED, "FILES_REMAIN")
    assert [one["path"] for one in (task.result or {})["failed"]["paths"]] == [back]
    assert any("metadata.json" in uri for uri in bench.objects(name)), "the root is needed"
    task = bench.attempt(task_id)
    assert task.status is Status.SUCCESS, task
    assert bench.objects(name) == set()
    assert (task.result or {})["files_deleted"] == (task.result or {})["files_found"]


def test_purge_on_s3_cancelled_during_a_delete(bench: Bench, fault_proxy: FaultProxy) -> None:
    name = bench.write(files_each=20)
    before = bench.objects(name)
    fault_proxy.clear()
    fault_proxy.add(delay(0.5, operation="DeleteObjects"))
    task_id = bench.submit(name)
    purge = {"keys_per_request": 2, "requests_at_once": 1}
    attempt = threading.Thread(target=bench.attempt, args=(task_id,), kwargs=purge)
    attempt.start()
    wait_for(lambda: fault_proxy.count("DeleteObjects") > 3, "nothing is deleted")
    progress = wait_for(
        lambda: (p := bench.store.get(task_id).progress) and p["step"] == "delete" and p,
        "no progress",
    )
    assert progress["files_total"] == len(before)

    bench.store.request_cancel(task_id)
    attempt.join(timeout=15)

    assert not attempt.is_alive()
    task = bench.store.get(task_id)
    assert (task.status, task.error_code) == (Status.FAILURE, "CANCELLED")
    result, left = task.result or {}, bench.objects(name)
    assert 0 < len(left) < len(before)
    assert result["files_deleted"] == len(before) - len(left)
    assert result["files_left"] == len(left)
    assert sum(phase["deleted"] for phase in result["by_phase"].values()) == len(before - left)


# --- The four points of failure ---------------------------------------------------------------


def test_purge_on_s3_changes_nothing_if_a_call_fails(
    bench: Bench, vending_catalog: VendingCatalog, fault_proxy: FaultProxy
) -> None:
    """1: the task never reaches the ledger, so no worker takes it."""
    name = bench.write()
    before, loads = bench.objects(name), vending_catalog.loads[f"{NAMESPACE}.{name}"]
    bench.store.pool.close()
    with pytest.raises(Exception, match=r"closed|answer"):
        bench.submit(name)
    assert bench.objects(name) == before
    assert vending_catalog.loads[f"{NAMESPACE}.{name}"] == loads
    assert fault_proxy.count("DeleteObjects") == 0


@pytest.mark.parametrize(
    ("status", "ends"),
    [(500, Status.RETRY_SCHEDULED), (503, Status.RETRY_SCHEDULED), (403, Status.FAILURE)],
)
def test_purge_on_s3_changes_nothing_if_vending_fails(
    bench: Bench,
    vending_catalog: VendingCatalog,
    fault_proxy: FaultProxy,
    status: int,
    ends: Status,
) -> None:
    """2: a 502 to the caller, and the store is never asked for anything."""
    name = bench.write()
    before = bench.objects(name)
    fault_proxy.clear()
    vending_catalog.fail("load", status)
    task_id = bench.submit(name)

    task = bench.attempt(task_id)

    assert (task.status, task.error_code) == (ends, "CREDENTIAL_VENDING_FAILED")
    assert http_status_of(task.error_code) == 502
    assert bench.objects(name) == before
    assert fault_proxy.calls == []
    assert (task.checkpoint, task.result) == ({}, None)
    if ends is Status.RETRY_SCHEDULED:
        vending_catalog.heal()
        assert bench.attempt(task_id).status is Status.SUCCESS


def test_purge_on_s3_changes_nothing_while_the_catalog_is_away(
    bench: Bench, vending_catalog: VendingCatalog, fault_proxy: FaultProxy
) -> None:
    name = bench.write()
    before = bench.objects(name)
    fault_proxy.clear()
    with vending_catalog.refusing():
        task = bench.attempt(bench.submit(name))
    assert (task.status, task.error_code) == (Status.RETRY_SCHEDULED, "CREDENTIAL_VENDING_FAILED")
    assert bench.objects(name) == before
    assert fault_proxy.calls == []


def test_purge_on_s3_killed_midway_keeps_the_table_and_goes_on(
    bench: Bench, drivers: Drivers, failpoints: Failpoints, fault_proxy: FaultProxy
) -> None:
    """3: the catalog shows a broken table; the next attempt gets new keys for it."""
    name = bench.write(snapshots=2, files_each=10)
    before = bench.objects(name)
    fault_proxy.clear()
    failpoints.kill_at("purge.delete.old_metadata.after")
    task_id = bench.submit(name)
    drivers.start(task_id).join(timeout=90)
    assert bench.store.get(task_id).status is Status.RUNNING
    left = bench.objects(name)
    assert len(left) == 1, "only the root"

    drivers.finish([task_id])

    task = bench.store.get(task_id)
    assert task.status is Status.SUCCESS
    assert ends_of_attempts(bench.history(task_id)) == ["LEASE_LOST", "SUCCESS"]
    assert bench.objects(name) == set()
    assert (task.result or {})["files_deleted"] == len(before)
    assert {fault_proxy.asked[uri] for uri in before} == {1}, "no file was asked for twice"


def test_purge_on_s3_killed_after_the_last_delete_is_still_a_success(
    bench: Bench, drivers: Drivers, failpoints: Failpoints, fault_proxy: FaultProxy
) -> None:
    """4: the root is gone, so the catalog vends nothing any more; there is nothing left to do."""
    name = bench.write()
    before = bench.objects(name)
    fault_proxy.clear()
    failpoints.kill_at("purge.root.deleted")
    task_id = bench.submit(name)
    drivers.start(task_id).join(timeout=90)
    assert bench.objects(name) == set()
    assert bench.store.get(task_id).status is Status.RUNNING

    drivers.finish([task_id])

    task = bench.store.get(task_id)
    assert task.status is Status.SUCCESS, bench.history(task_id)
    assert (task.result or {})["files_deleted"] == len(before)
    assert {fault_proxy.asked[uri] for uri in before} == {1}


def test_purge_on_s3_does_not_touch_a_table_that_changed_before_the_first_delete(
    bench: Bench, vending_catalog: VendingCatalog, fault_proxy: FaultProxy
) -> None:
    name = bench.write()
    before = bench.objects(name)
    vending_catalog.disguise(
        f"{NAMESPACE}.{name}", uuid="00000000-0000-4000-8000-000000000000", after=3
    )
    fault_proxy.clear()
    task = bench.attempt(bench.submit(name))
    assert (task.status, task.error_code) == (Status.FAILURE, "TABLE_CHANGED")
    assert bench.objects(name) == before
    assert fault_proxy.count("DeleteObjects?") == 0


def _claim_of(task: Task) -> Claim:
    return Claim(task.task_id, task.version, "operator")
