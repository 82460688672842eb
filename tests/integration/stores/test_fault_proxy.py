"""The proxy between a client and the store does what its rules say, and counts what is true."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from support.fault_proxy import FaultProxy, delay, fail_keys, refuse, reset_after, reset_before
from support.s3_client import code_of, delete, open_client
from support.seaweedfs import SeaweedFS, SessionKeys, allow
from support.stores import BUCKET, new_name


@pytest.fixture
def client(seaweedfs: SeaweedFS, fault_proxy: FaultProxy) -> Any:
    return open_client({**seaweedfs.properties(), "s3.endpoint": fault_proxy.url})


@pytest.fixture
def prefix() -> str:
    return new_name()


def put(seaweedfs: SeaweedFS, prefix: str, *names: object) -> list[str]:
    client = seaweedfs.client()
    keys = [f"{prefix}/{name}" for name in names]
    for key in keys:
        client.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    return keys


def uri(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


ODD_NAMES = ["a b.parquet", "50%.parquet", "1+1", "no#1.parquet", "größe=ö.parquet", "a&b<c>"]


class TestWithoutRules:
    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_fault_proxy_passes_signed_requests_whatever_the_name(
        self, client: Any, fault_proxy: FaultProxy, prefix: str, name: str
    ) -> None:
        key = f"{prefix}/{name}"
        client.put_object(Bucket=BUCKET, Key=key, Body=b"content")
        assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"content"
        assert client.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == 7
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
        assert [entry["Key"] for entry in listed] == [key]
        client.delete_object(Bucket=BUCKET, Key=key)
        assert delete(client, BUCKET, key) == {}
        assert fault_proxy.deleted == {uri(key): 2}
        operations = [call.operation for call in fault_proxy.calls]
        assert operations == [
            "PutObject",
            "GetObject",
            "HeadObject",
            "ListObjects",
            "DeleteObject",
            "DeleteObjects",
        ]

    def test_fault_proxy_leaves_wrong_signatures_refused(
        self, seaweedfs: SeaweedFS, fault_proxy: FaultProxy
    ) -> None:
        wrong = {"s3.endpoint": fault_proxy.url, "s3.secret-access-key": "guessed"}
        client = open_client({**seaweedfs.properties(), **wrong})
        with pytest.raises(ClientError) as refused:
            client.get_object(Bucket=BUCKET, Key="any")
        assert code_of(refused.value) == (403, "SignatureDoesNotMatch")

    def test_fault_proxy_passes_thousands_of_keys(
        self, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        keys = [f"{prefix}/{number}" for number in range(8000)]
        for first in range(0, len(keys), 1000):
            assert delete(client, BUCKET, *keys[first : first + 1000]) == {}
        assert fault_proxy.deleted == {uri(key): 1 for key in keys}

    def test_fault_proxy_passes_many_connections_at_once(self, client: Any, prefix: str) -> None:
        def put_one(number: int) -> None:
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{number}", Body=b"x")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put_one, range(200)))
        assert client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["KeyCount"] == 200


class TestWholeRequests:
    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("AccessDenied", 403),
            ("SlowDown", 503),
            ("TooManyRequests", 429),
            ("InternalError", 500),
        ],
    )
    def test_fault_proxy_refuses_requests_so_many_times(
        self,
        seaweedfs: SeaweedFS,
        client: Any,
        fault_proxy: FaultProxy,
        prefix: str,
        code: str,
        status: int,
    ) -> None:
        [key] = put(seaweedfs, prefix, "a")
        fault_proxy.add(refuse(code, operation="DeleteObjects", key=prefix, times=2))
        client.head_object(Bucket=BUCKET, Key=key)
        for _ in range(2):
            with pytest.raises(ClientError) as refused:
                delete(client, BUCKET, key)
            assert code_of(refused.value) == (status, code)
        assert seaweedfs.keys_in(BUCKET, prefix) == {key}
        assert delete(client, BUCKET, key) == {}
        assert seaweedfs.keys_in(BUCKET, prefix) == set()
        assert fault_proxy.asked[uri(key)] == 3
        assert fault_proxy.deleted[uri(key)] == 1
        assert fault_proxy.count("DeleteObjects", status=status) == 2

    def test_fault_proxy_fails_only_requests_that_match(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        mine, other = put(seaweedfs, prefix, "mine", "other")
        fault_proxy.add(refuse("AccessDenied", key="mine$"))
        client.head_object(Bucket=BUCKET, Key=other)
        with pytest.raises(ClientError, match="403"):
            client.head_object(Bucket=BUCKET, Key=mine)

    def test_fault_proxy_fails_about_every_second_request(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        fault_proxy.add(refuse("SlowDown", probability=0.5))
        for _ in range(100):
            with contextlib.suppress(ClientError):
                delete(client, BUCKET, f"{prefix}/a")
        assert 20 < fault_proxy.count("DeleteObjects", status=503) < 80
        assert fault_proxy.count() == 100

    def test_fault_proxy_resets_before_the_store_gets_the_request(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        [key] = put(seaweedfs, prefix, "a")
        fault_proxy.add(reset_before(operation="DeleteObjects", times=1))
        with pytest.raises(ConnectionClosedError):
            delete(client, BUCKET, key)
        assert seaweedfs.keys_in(BUCKET, prefix) == {key}
        assert fault_proxy.deleted == {}
        assert fault_proxy.count(status=0) == 1
        assert delete(client, BUCKET, key) == {}

    def test_fault_proxy_resets_after_the_store_executed_the_request(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        [key] = put(seaweedfs, prefix, "a")
        fault_proxy.add(reset_after(operation="DeleteObjects", times=1))
        with pytest.raises(ConnectionClosedError):
            delete(client, BUCKET, key)
        assert seaweedfs.keys_in(BUCKET, prefix) == set()
        assert fault_proxy.deleted == {uri(key): 1}

    def test_fault_proxy_delays_the_answer(
        self, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        fault_proxy.add(delay(0.3, operation="DeleteObjects", times=1))
        started = time.monotonic()
        delete(client, BUCKET, f"{prefix}/a")
        assert time.monotonic() - started >= 0.3


class TestSingleKeys:
    @pytest.mark.parametrize("code", ["AccessDenied", "InternalError", "SlowDown"])
    def test_fault_proxy_fails_single_keys_among_others_that_stay(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str, code: str
    ) -> None:
        keys = put(seaweedfs, prefix, *range(9), "ö &7")
        fault_proxy.add(fail_keys(code, key="[37]$"))
        wrong = {f"{prefix}/3", f"{prefix}/7", f"{prefix}/ö &7"}
        assert delete(client, BUCKET, *keys) == dict.fromkeys(wrong, code)
        assert seaweedfs.keys_in(BUCKET, prefix) == wrong
        assert delete(client, BUCKET, *wrong) == dict.fromkeys(wrong, code)
        assert set(fault_proxy.deleted) == {uri(key) for key in keys if key not in wrong}
        assert fault_proxy.asked[uri(f"{prefix}/3")] == 2

    def test_fault_proxy_fails_each_key_once(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        keys = put(seaweedfs, prefix, "a", "b")
        fault_proxy.add(fail_keys("InternalError", key=prefix, times=1))
        assert delete(client, BUCKET, keys[0]) == {keys[0]: "InternalError"}
        assert delete(client, BUCKET, *keys) == {keys[1]: "InternalError"}
        assert delete(client, BUCKET, *keys) == {}
        assert seaweedfs.keys_in(BUCKET, prefix) == set()

    def test_fault_proxy_fails_keys_although_the_store_deletes_them(
        self, seaweedfs: SeaweedFS, client: Any, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        keys = put(seaweedfs, prefix, "a", "b")
        fault_proxy.add(fail_keys("InternalError", key="a$", forward=True, times=1))
        assert delete(client, BUCKET, *keys) == {keys[0]: "InternalError"}
        assert seaweedfs.keys_in(BUCKET, prefix) == set()
        assert fault_proxy.deleted == {uri(key): 1 for key in keys}

    def test_fault_proxy_keeps_the_policy_of_temporary_keys(
        self, seaweedfs: SeaweedFS, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        mine, spared, foreign = put(seaweedfs, prefix, "in/a", "in/b", "out/c")
        keys = seaweedfs.assume_role(allow(["s3:DeleteObject"], BUCKET, f"{prefix}/in/"))
        client = open_as(keys, seaweedfs, fault_proxy)
        fault_proxy.add(fail_keys("SlowDown", key="b$"))
        refused = {spared: "SlowDown", foreign: "AccessDenied"}
        assert delete(client, BUCKET, mine, spared, foreign) == refused
        assert seaweedfs.keys_in(BUCKET, prefix) == {spared, foreign}
        assert fault_proxy.deleted == {uri(mine): 1}


class TestLifetimes:
    def test_fault_proxy_ends_the_lifetime_of_keys(
        self, seaweedfs: SeaweedFS, fault_proxy: FaultProxy, prefix: str
    ) -> None:
        [key] = put(seaweedfs, prefix, "a")
        keys = seaweedfs.assume_role(allow(["s3:*"], BUCKET, f"{prefix}/"))
        client = open_as(keys, seaweedfs, fault_proxy, expires_at=time.time() + 1)
        client.get_object(Bucket=BUCKET, Key=key)
        time.sleep(1)
        with pytest.raises(ClientError) as refused:
            delete(client, BUCKET, key)
        assert code_of(refused.value) == (400, "ExpiredToken")
        assert seaweedfs.keys_in(BUCKET, prefix) == {key}
        assert fault_proxy.access_keys() == [keys.access_key]


def open_as(
    keys: SessionKeys, store: SeaweedFS, proxy: FaultProxy, expires_at: float | None = None
) -> Any:
    proxy.lend(keys.access_key, keys.secret_key, expires_at)
    return open_client({**store.place(), "s3.endpoint": proxy.url, **keys.properties()})
