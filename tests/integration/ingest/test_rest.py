"""NDJSON over HTTP: what callers send, and what is in the table afterwards."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.ingest import DATABASE, Door, IngestSite, ndjson, new_key, new_table


def acknowledged(response: requests.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


def refused(response: requests.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert error["code"] == code, error
    assert error["request_id"] == response.headers["X-Request-ID"]
    return str(error["message"])


def test_a_batch_is_in_a_snapshot_when_it_is_acknowledged(door: Door, site: IngestSite) -> None:
    table = new_table()
    rows = [{"timestamp": "2026-01-01T00:00:00Z", "message": f"m{n}"} for n in range(100)]

    answer = acknowledged(door.send(table, rows))

    assert set(answer) == {
        "snapshot_id",
        "extent_count",
        "rows_ingested",
        "bytes_written",
        "replayed",
    }
    assert answer["rows_ingested"] == 100
    assert answer["extent_count"] == 1
    assert answer["bytes_written"] > 0
    assert answer["replayed"] is False
    found = site.select(f"SELECT snapshot_id FROM {{db}}.{table}.snapshots")
    assert found == [{"snapshot_id": answer["snapshot_id"]}]
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 100}]


def test_a_replay_returns_the_original_and_writes_nothing(door: Door, site: IngestSite) -> None:
    table, key = new_table(), new_key()
    first = acknowledged(door.send(table, [{"message": "once"}], key))

    again = acknowledged(door.send(table, [{"message": "once"}], key))
    by_other_name = acknowledged(
        door.send(table, [{"message": "once"}], None, **{"Idempotency-Key": key})
    )

    assert again == {**first, "replayed": True}
    assert by_other_name == again
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 1}]


def test_the_same_key_with_other_bytes_is_refused(door: Door, site: IngestSite) -> None:
    table, key = new_table(), new_key()
    acknowledged(door.send(table, [{"message": "once"}], key))

    refused(door.send(table, [{"message": "twice"}], key), 422, "idempotency_key_reused")

    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 1}]


def test_the_same_key_of_another_caller_or_for_another_table_is_a_different_one(
    door: Door, site: IngestSite
) -> None:
    table, other_table, key = new_table(), new_table(), new_key()
    stranger = f"Bearer {site.issuer.token(sub='stranger', scope='ingest:write')}"

    acknowledged(door.send(table, [{"message": "mine"}], key))
    answer = door.send(table, [{"message": "theirs"}], key, Authorization=stranger)
    assert acknowledged(answer)["replayed"] is False
    answer = door.send(other_table, [{"message": "mine"}], key)
    assert acknowledged(answer)["replayed"] is False

    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 2}]
    status = door.call("GET", f"/v1/requests/{key}")
    assert (status.json()["key"], status.json()["table"]) == (key, other_table)
    narrowed = door.call("GET", f"/v1/requests/{key}?database={DATABASE}&table={table}")
    assert narrowed.json()["table"] == table


@pytest.mark.parametrize("size", [1, 200_000], ids=["in the ledger", "in a file"])
def test_concurrent_requests_with_one_key_are_written_once(
    door: Door, site: IngestSite, size: int
) -> None:
    table, key = new_table(), new_key()
    body = ndjson([{"message": "m" * size}])
    start = threading.Barrier(8)

    def send(_: int) -> requests.Response:
        start.wait()
        return door.send(table, body, key)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))

    good = [answer.json() for answer in answers if answer.status_code == 200]
    others = [answer for answer in answers if answer.status_code != 200]
    assert good
    assert len({answer["snapshot_id"] for answer in good}) == 1
    for other in others:  # its bytes came while those of the first were still arriving
        refused(other, 409, "request_in_progress")
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 1}]


def test_one_bad_line_rejects_its_request_and_no_other(door: Door, site: IngestSite) -> None:
    table = new_table()
    acknowledged(door.send(table, [{"message": "first"}]))
    bad = ndjson([{"message": "a"}, {"message": 5}, {"message": "c"}])
    start = threading.Barrier(6)

    def send(number: int) -> requests.Response:
        start.wait()
        return door.send(table, bad if number == 3 else [{"message": f"good {number}"}])

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))

    message = refused(answers.pop(3), 400, "invalid_line")
    assert "Line 2" in message
    assert "message" in message
    assert "5" in message
    assert "string" in message
    for answer in answers:
        acknowledged(answer)
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 6}]


def test_a_refused_key_can_be_used_for_what_was_meant(door: Door, site: IngestSite) -> None:
    table, key = new_table(), new_key()
    acknowledged(door.send(table, [{"message": "first"}]))
    refused(door.send(table, [{"message": 5}], key), 400, "invalid_line")

    status = door.call("GET", f"/v1/requests/{key}").json()
    assert status["state"] == "rejected"
    assert status["error"]["line"] == 1

    assert acknowledged(door.send(table, [{"message": "5"}], key))["replayed"] is False


def test_a_large_body_is_cut_to_pieces_and_counted_right(door: Door, site: IngestSite) -> None:
    table = new_table()
    rows = [{"message": f"{n:06d}" + "x" * 200} for n in range(5000)]
    with site.api(inline_bytes="1000") as small_door:
        answer = acknowledged(small_door.send(table, rows))
    assert answer["rows_ingested"] == 5000
    found = site.select(f"SELECT count(DISTINCT message) AS n FROM {{db}}.{table}")
    assert found == [{"n": 5000}]
    assert not list((site.folder / "workspace" / "ingest").glob("*"))


def test_the_line_of_an_error_is_that_of_the_request(site: IngestSite, door: Door) -> None:
    table = new_table()
    rows: list[Any] = [{"message": f"{n:06d}" + "x" * 200} for n in range(5000)]
    rows[4321]["message"] = 7
    rows[4567]["message"] = 8
    with site.api(inline_bytes="1000") as door:
        message = refused(door.send(table, rows), 400, "invalid_line")
        assert "Line 4322," in message
        del rows[4567], rows[4321]
        assert acknowledged(door.send(table, rows))["extent_count"] > 5
    assert site.data_files(table) == site.committed_files(table)


# --- Schemas --------------------------------------------------------------------------------


def test_unknown_fields_become_columns(door: Door, site: IngestSite) -> None:
    table = new_table()
    acknowledged(door.send(table, [{"message": "old"}]))

    acknowledged(door.send(table, [{"message": "new", "colour": "red", "size": 5}]))
    acknowledged(door.send(table, [{"message": "newer", "size": {"w": 1.50}}]))

    found = site.select(f"SELECT message, colour, size FROM {{db}}.{table} ORDER BY message")
    assert found == [
        {"message": "new", "colour": "red", "size": "5"},
        {"message": "newer", "colour": None, "size": '{"w": 1.5}'},
        {"message": "old", "colour": None, "size": None},
    ]
    scanned = site.tables().load(DATABASE, table).scan().to_arrow().to_pylist()
    assert sorted(row["message"] for row in scanned) == ["new", "newer", "old"]


def test_at_most_32_columns_are_made_and_the_rest_is_kept(door: Door, site: IngestSite) -> None:
    table = new_table()
    fields = {f"f{n:02d}": n for n in range(40)}

    acknowledged(door.send(table, [{"message": "m", "Not A Name": True, **fields}]))

    columns = [
        c["name"] for c in door.call("GET", f"/v1/tables/{DATABASE}/{table}").json()["columns"]
    ]
    assert columns == ["timestamp", "message", "props", *list(fields)[:32]]
    (row,) = site.select(f"SELECT CAST(props AS STRING) AS props FROM {{db}}.{table}")
    kept = json.loads(row["props"])
    assert kept == {"Not A Name": True, **{f"f{n:02d}": n for n in range(32, 40)}}


def test_without_evolution_unknown_fields_are_dropped(door: Door, site: IngestSite) -> None:
    table = new_table()
    acknowledged(door.send(table, [{"message": "m", "colour": "red"}], evolve=False))
    (row,) = site.select(f"SELECT * FROM {{db}}.{table}")
    assert row == {"timestamp": None, "message": "m", "props": None}


def test_two_writers_that_widen_at_once_end_with_both_columns(site: IngestSite, door: Door) -> None:
    table = new_table()
    acknowledged(door.send(table, [{"message": "m"}]))
    tables = site.tables()
    first, second = (tables.load(DATABASE, table) for _ in range(2))

    tables.widen(first, ["left_one", "both"])
    tables.widen(second, ["right_one", "both"])

    names = {
        column["name"]
        for column in door.call("GET", f"/v1/tables/{DATABASE}/{table}").json()["columns"]
    }
    assert {"left_one", "right_one", "both"} <= names


def test_typed_tables_have_every_type(door: Door, site: IngestSite) -> None:
    table = new_table()
    types = ["bool", "int", "long", "real", "string", "timestamp", "dynamic", "vector(3)"]
    columns = [{"name": f"c{n}", "type": type} for n, type in enumerate(types)]
    made = door.call(
        "POST", "/v1/tables", json={"database": DATABASE, "table": table, "columns": columns}
    )
    assert made.status_code == 201, made.text
    assert [column["type"] for column in made.json()["columns"]] == types
    line = (
        b'{"c0": true, "c1": 1, "c2": 9007199254740993, "c3": 0.5, "c4": "s", '
        b'"c5": "2026-01-01T00:00:00.123456789Z", "c6": {"a":  [1, 2]}, "c7": [1, 2, 0.5]}'
    )

    acknowledged(door.send(table, line, create=False))

    (row,) = site.select(f"SELECT *, CAST(c6 AS STRING) AS c6s FROM {{db}}.{table}")
    assert row["c2"] == 9007199254740993
    assert row["c5"].isoformat() == "2026-01-01T00:00:00.123456"
    assert row["c6s"] == '{"a":  [1, 2]}'
    assert row["c7"] == [1.0, 2.0, 0.5]
    (path,) = site.select(
        f"SELECT get_json_object(CAST(c6 AS STRING), '$.a[1]') AS found FROM {{db}}.{table}"
    )
    assert path == {"found": "2"}
    (path,) = site.select(
        "SELECT variant_get(parse_json(CAST(c6 AS STRING)), '$.a[0]', 'int') AS found "
        f"FROM {{db}}.{table}"
    )
    assert path == {"found": 1}
    again = door.call(
        "POST", "/v1/tables", json={"database": DATABASE, "table": table, "columns": columns}
    )
    refused(again, 409, "table_exists")


def test_a_field_is_promoted_and_reads_have_both(door: Door, site: IngestSite) -> None:
    table = new_table()
    acknowledged(door.send(table, [{"message": "a", "took": 1.5}, {"message": "b", "took": "?"}]))

    made = door.call(
        "POST",
        f"/v1/tables/{DATABASE}/{table}/promotions",
        json={"field": "took", "type": "real"},
    )
    assert made.status_code == 201, made.text
    acknowledged(door.send(table, [{"message": "c", "took": 2}]))
    refused(door.send(table, [{"message": "d", "took": "long"}]), 400, "invalid_line")

    read = made.json()["read_as"]
    found = site.select(f"SELECT message, {read} AS took FROM {{db}}.{table} ORDER BY message")
    assert [row["took"] for row in found] == [1.5, None, 2.0]


# --- Bad input ------------------------------------------------------------------------------


def test_bad_requests_are_refused_and_change_nothing(door: Door, site: IngestSite) -> None:
    table = new_table()
    good = b'{"message": "m"}\n'
    before = site.rows("SELECT count(*) AS n FROM ingest_ledger WHERE state = 'applied'")

    refused(door.send("", good), 400, "missing_table_header")
    refused(door.send(table, good, X_Database=""), 400, "missing_table_header")
    refused(door.send("a/b", good), 400, "invalid_name")
    refused(door.send(table, good, X_Auto_Create="maybe"), 400, "invalid_header")
    refused(door.send(table, good, "k" * 256), 400, "invalid_idempotency_key")
    refused(door.send(table, b""), 400, "bad_request_body")
    refused(door.send(table, b"\n \n"), 400, "bad_request_body")
    refused(door.send(table, good, Content_Type="text/csv"), 415, "unsupported_media_type")
    refused(door.send(table, good, Content_Encoding="br"), 415, "unsupported_media_type")
    refused(door.send(table, good, Content_Encoding="gzip"), 400, "bad_request_body")
    refused(door.send(table, good, Content_Encoding="zstd"), 400, "bad_request_body")
    cut_off = gzip.compress(good * 1000)[:-10]
    refused(door.send(table, cut_off, Content_Encoding="gzip"), 400, "bad_request_body")
    refused(door.send(new_table(), good, create=False), 404, "table_not_found")
    refused(door.send(table, good, Authorization="Bearer nonsense"), 401, "unauthorized")
    refused(door.send(table, good, Authorization=""), 401, "unauthorized")
    refused(door.call("GET", "/v1/requests/unknown"), 404, "key_not_found")
    refused(door.call("GET", "/v1/nothing"), 404, "not_found")
    refused(door.call("POST", "/v1/tables", json={"database": "d"}), 400, "validation_failed")

    assert site.rows("SELECT count(*) AS n FROM ingest_ledger WHERE state = 'applied'") == before


def test_a_caller_without_the_scope_is_refused(door: Door, site: IngestSite) -> None:
    token = site.issuer.token(scope="other")
    refused(door.send(new_table(), b"{}", Authorization=f"Bearer {token}"), 403, "forbidden")


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_bodies_may_be_packed_but_not_too_large(
    site: IngestSite, door: Door, encoding: str
) -> None:
    pack = {
        "identity": bytes,
        "gzip": gzip.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[encoding]
    table = new_table()
    good = ndjson([{"message": "m"}] * 10)
    assert acknowledged(door.send(table, pack(good), Content_Encoding=encoding))
    with site.api(rest__max_body_bytes="100000") as small:
        bomb = pack(b'{"message": "m"}\n' * 100_000)
        refused(small.send(table, bomb, Content_Encoding=encoding), 413, "payload_too_large")
    packed = pack(good) + pack(good)  # as gzip and zstd have it, one after the other
    if encoding != "identity":
        answer = acknowledged(door.send(table, packed, Content_Encoding=encoding))
        assert answer["rows_ingested"] == 20


def test_a_client_has_its_rate(site: IngestSite, running_writer: None) -> None:
    table = new_table()
    with site.api(rest__requests_per_second="0.1", rest__burst="2") as door:
        for _ in range(2):
            acknowledged(door.send(table, b"{}"))
        answer = door.send(table, b"{}")
        refused(answer, 429, "rate_limited")
        assert 1 <= int(answer.headers["Retry-After"]) <= 10
        refused(door.send(table, b"{}", X_Database="other"), 429, "rate_limited")


def test_request_ids_come_back(door: Door) -> None:
    answer = door.send(new_table(), b"{}", X_Request_ID="mine-1")
    assert answer.headers["X-Request-ID"] == "mine-1"
    assert door.send("", b"", X_Request_ID="mine-2").json()["error"]["request_id"] == "mine-2"


def test_the_state_of_a_request(door: Door) -> None:
    table, key = new_table(), new_key()
    body = b'{"message": "m"}\n'
    answer = acknowledged(door.send(table, body, key))

    status = door.call("GET", f"/v1/requests/{key}").json()

    assert status["state"] == "applied"
    assert status["table"] == table
    assert status["door"] == "rest"
    assert status["snapshot_id"] == answer["snapshot_id"]
    assert status["rows_ingested"] == 1
    assert status["error"] is None


def test_the_snapshot_names_its_keys(door: Door, site: IngestSite) -> None:
    table, key = new_table(), new_key()
    acknowledged(door.send(table, b'{"message": "m"}\n', key))
    (row,) = site.select(f"SELECT summary FROM {{db}}.{table}.snapshots")
    (kept,) = site.rows("SELECT key, fingerprint FROM ingest_ledger WHERE client_key = %s", key)
    assert kept["key"] in json.loads(dict(row["summary"])["moraine.ingest.keys"])
    assert kept["fingerprint"] == hashlib.sha256(b'{"message": "m"}\n').hexdigest()


# --- Anything at all ------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_makes_the_door_fail_or_commits_in_part(
    fuzzed: tuple[Door, IngestSite, str], data: st.DataObject
) -> None:
    door, site, table = fuzzed
    good = ndjson([{"message": f"m{n}", "n": n, "deep": {"a": [n]}} for n in range(4)])
    body = bytearray(good)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(body)))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(st.binary(max_size=6), st.sampled_from(SALT))
        )
    encoding = data.draw(st.sampled_from(["", "gzip", "zstd", "plain lie"]))
    sent = {
        "": bytes(body),
        "gzip": gzip.compress(bytes(body)),
        "zstd": zstandard.ZstdCompressor().compress(bytes(body)),
        "plain lie": bytes(body),
    }[encoding]
    headers = {"Content_Encoding": "gzip" if encoding == "plain lie" else encoding or "identity"}
    before = site.count_rows(table)

    answer = door.send(table, sent, **headers)

    assert answer.status_code in (200, 400), answer.text
    written = site.count_rows(table) - before
    assert written == (answer.json()["rows_ingested"] if answer.status_code == 200 else 0)


SALT = [b"\n", b"{", b"}", b'"', b"NaN", b"1e999", b"\\ud800", b"\xff", b"\x00", b"[" * 300, b"{}"]


@pytest.fixture(scope="module")
def fuzzed(site: IngestSite, running_writer: None) -> Iterator[tuple[Door, IngestSite, str]]:
    table = new_table()
    with site.api() as door:
        acknowledged(door.send(table, [{"message": "first"}]))
        yield door, site, table
