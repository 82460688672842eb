"""Bodies that are wrong in every way a body can be: each gets its own clear 4xx."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from moraine.http import DELEGATION_PATH
from moraine.http.errors import ErrorResponse
from moraine.tasks.model import TaskFilter
from support.api_server import SYNC, Api, Hand, purge

StartApi = Callable[..., Api]
PATHS = ["/v1/tasks", SYNC]


def error_of(response: requests.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = ErrorResponse.model_validate_json(response.content, extra="forbid")
    assert body.error_code == code
    assert "Traceback" not in response.text
    return body.message


def post(api: Api, body: bytes, content_type: str = "application/json") -> requests.Response:
    """To both routes, which must answer alike."""
    first, second = (
        api.post(path, data=body, headers={"Content-Type": content_type}) for path in PATHS
    )
    assert first.status_code == second.status_code
    assert first.json() == second.json()
    return first


def changed(path: str, value: Any) -> bytes:
    """A good body with one value put in its place."""
    payload = copy.deepcopy(purge())
    *parents, last = path.split("/")
    place: Any = payload
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(payload).encode()


def without(path: str) -> bytes:
    payload = copy.deepcopy(purge())
    *parents, last = path.split("/")
    place: Any = payload
    for parent in parents:
        place = place[parent]
    del place[last]
    return json.dumps(payload).encode()


COMMON = "common_payload"
IDENTITY = "operation_parameters/table_identity"


def test_api_refuses_bodies_that_are_no_object(api: Api, hand: Hand) -> None:
    assert "no body" in error_of(post(api, b""), 400, "BAD_REQUEST")
    assert "no body" in error_of(post(api, b" \n"), 400, "BAD_REQUEST")
    assert "byte 1" in error_of(post(api, b'"\xff"'), 400, "BAD_REQUEST")
    error_of(post(api, "{}".encode("utf-16")), 400, "BAD_REQUEST")
    for body in (
        b"[]",
        b"[{}]",
        b"null",
        b"1",
        b'"x"',
        b"{",
        b"{}{}",
        b"{'a': 1}",
        b"\xef\xbb\xbf{}",
    ):
        error_of(post(api, body), 400, "VALIDATION_FAILED")
    for number in (b"9" * 10_000, b"-1e999", b"1e-999", b"NaN", b"Infinity", b"0x1"):
        error_of(post(api, number), 400, "VALIDATION_FAILED")
    assert hand.store.find(TaskFilter(), limit=1) == []


@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b'{"common_payload":', b'{"operation_parameters":{"x":[']
)
def test_api_refuses_nesting_bombs(api: Api, opening: bytes) -> None:
    for depth in (150, 300, 100_000):
        error_of(post(api, (opening * depth)[:900_000]), 400, "VALIDATION_FAILED")
    closing = b"]" if opening.endswith(b"[") else b"}"
    if len(opening) < 6:
        body = opening * 50_000 + b"1" + closing * 50_000
        error_of(post(api, body), 400, "VALIDATION_FAILED")


def test_api_bounds_nesting_in_unknown_fields_too(api: Api) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    assert (
        api.post(
            "/v1/tasks",
            data=changed("operation_parameters/config", {"a": deep}),
            headers={"Content-Type": "application/json"},
        ).status_code
        == 202
    )
    bomb = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    body = changed("operation_parameters/config", "HERE").replace(b'"HERE"', bomb)
    error_of(post(api, body), 400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
     "application/json; charset=latin-1", "application/jsonx", "application/xml"],
)  # fmt: skip
def test_api_refuses_other_content_types(api: Api, content_type: str) -> None:
    body = json.dumps(purge()).encode()
    error_of(post(api, body, content_type), 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8",
     'application/json;charset="UTF-8"'],
)  # fmt: skip
def test_api_accepts_content_types_of_json(api: Api, content_type: str) -> None:
    body = json.dumps(purge()).encode()
    headers = {"Content-Type": content_type}
    assert api.post("/v1/tasks", data=body, headers=headers).status_code == 202


def test_api_refuses_a_body_that_declares_to_be_too_large(start_api: StartApi) -> None:
    api = start_api(api={"max_body_bytes": 1000})
    message = error_of(post(api, b" " * 1001), 413, "PAYLOAD_TOO_LARGE")
    assert "1000 bytes" in message
    error_of(post(api, b" " * 1000), 400, "BAD_REQUEST")


def test_api_refuses_a_chunked_body_that_grows_too_large(start_api: StartApi) -> None:
    """Read by hand: the answer comes while the body is still on its way."""
    api = start_api(api={"max_body_bytes": 1000})
    parts = urlsplit(api.origin)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), 10) as caller:
        head = (
            f"POST {DELEGATION_PATH}/v1/tasks HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: {api._headers['Authorization']}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        caller.sendall(head.encode())
        for _ in range(3):
            caller.sendall(b"190\r\n" + b" " * 0x190 + b"\r\n")
        answer = b""
        while b"PAYLOAD_TOO_LARGE" not in answer:
            data = caller.recv(65536)
            assert data, answer
            answer += data
    assert answer.startswith(b"HTTP/1.1 413 ")
    good = json.dumps(purge()).encode()
    chunks = iter([good[:100], good[100:]])
    headers = {"Content-Type": "application/json"}
    assert api.post("/v1/tasks", data=chunks, headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("common_payload", "common_payload"),
        ("operation_parameters", "operation_parameters"),
        (f"{COMMON}/operation_type", "common_payload.operation_type"),
        (f"{COMMON}/realm_identifier", "common_payload.realm_identifier"),
        (IDENTITY, "operation_parameters.table_identity"),
        (f"{IDENTITY}/catalog_name", "operation_parameters.table_identity.catalog_name"),
        (f"{IDENTITY}/namespace_levels", "operation_parameters.table_identity.namespace_levels"),
        (f"{IDENTITY}/table_name", "operation_parameters.table_identity.table_name"),
    ],
)
def test_api_names_a_missing_field_by_its_path(api: Api, path: str, named: str) -> None:
    message = error_of(post(api, without(path)), 400, "VALIDATION_FAILED")
    assert message == f"{named}: Field required"


TEXT_FIELDS = [
    f"{COMMON}/operation_type",
    f"{COMMON}/realm_identifier",
    f"{COMMON}/polaris_correlation_id",
    f"{COMMON}/request_timestamp_utc",
    f"{IDENTITY}/catalog_name",
    f"{IDENTITY}/namespace_levels/0",
    f"{IDENTITY}/table_name",
    f"{IDENTITY}/table_entity_id",
    "operation_parameters/metadata_location",
    "operation_parameters/properties/dryRun",
]


@pytest.mark.parametrize("path", TEXT_FIELDS)
def test_api_refuses_invalid_texts(api: Api, path: str) -> None:
    named = path.replace("/", ".")
    for value in ("a\x00b", "\x1f", "\n", "\x7f", "x" * 5000, [], {}, ["x"], {"x": "y"}):
        message = error_of(post(api, changed(path, value)), 400, "VALIDATION_FAILED")
        assert message.startswith(named), value
    lone = changed(path, "HERE").replace(b"HERE", rb"\ud800")
    error_of(post(api, lone), 400, "VALIDATION_FAILED")
    raw = changed(path, "HERE").replace(b"HERE", b"\xed\xa0\x80")
    error_of(post(api, raw), 400, "BAD_REQUEST")
    control = changed(path, "HERE").replace(b"HERE", b"\x00")
    error_of(post(api, control), 400, "VALIDATION_FAILED")


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (COMMON, [], "common_payload"),
        ("operation_parameters", [], "operation_parameters"),
        ("operation_parameters", "x", "operation_parameters"),
        (IDENTITY, [], "operation_parameters.table_identity"),
        (f"{IDENTITY}/namespace_levels", [], "namespace_levels"),
        (f"{IDENTITY}/namespace_levels", "shop", "namespace_levels"),
        (f"{IDENTITY}/namespace_levels", ["a"] * 65, "namespace_levels"),
        (f"{IDENTITY}/namespace_levels", [None], "namespace_levels"),
        (f"{IDENTITY}/table_name", "", "table_name"),
        (f"{IDENTITY}/table_name", None, "table_name"),
        (f"{IDENTITY}/table_name", 7, "table_name"),
        ("operation_parameters/config", "s3.secret=x", "config"),
        ("operation_parameters/config", ["x"], "config"),
        ("operation_parameters/metadata", "x", "metadata"),
        ("operation_parameters/metadata", {"format-version": 10**400}, "format-version"),
        ("operation_parameters/metadata", {"format-version": -1}, "format-version"),
        ("operation_parameters/metadata", {"format-version": 2.5}, "format-version"),
        ("operation_parameters/metadata", {"location": "a\x00"}, "location"),
        ("operation_parameters/metadata", {"table-uuid": "\x00"}, "table-uuid"),
        ("operation_parameters/properties", ["dryRun"], "properties"),
        ("operation_parameters/properties", {"dryRun": "perhaps"}, "dryRun"),
        (f"{COMMON}/request_timestamp_utc", "yesterday", "request_timestamp_utc"),
        (f"{COMMON}/request_timestamp_utc", 1e300, "request_timestamp_utc"),
    ],
)
def test_api_refuses_values_of_the_wrong_type(api: Api, path: str, value: Any, named: str) -> None:
    assert named in error_of(post(api, changed(path, value)), 400, "VALIDATION_FAILED")


def test_api_refuses_names_too_long_for_the_ledgers_index(api: Api) -> None:
    levels = [f"{number}" + chr(0x1F600 + number) * 250 for number in range(60)]
    body = changed(f"{IDENTITY}/namespace_levels", levels)
    assert "2000 bytes" in error_of(post(api, body), 400, "VALIDATION_FAILED")
    most = [f"{number}é" * 18 for number in range(10, 40)]
    body = changed(f"{IDENTITY}/namespace_levels", most)
    response = api.post("/v1/tasks", data=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (202, 400)


def test_api_accepts_numbers_of_any_size_in_unknown_fields(api: Api) -> None:
    body = changed("operation_parameters/metadata", {"last-sequence-number": "HERE"})
    for number in (b"9" * 4000, b"1e999", b"-0.0", b"0." + b"1" * 4000):
        named = body.replace(b'"HERE"', number).replace(b"orders", b"t%d" % len(number))
        headers = {"Content-Type": "application/json"}
        response = api.post("/v1/tasks", data=named, headers=headers)
        assert response.status_code == 202, response.text
    error_of(post(api, body.replace(b'"HERE"', b"9" * 10_000)), 400, "VALIDATION_FAILED")


def test_api_refuses_a_name_given_twice(api: Api, hand: Hand) -> None:
    good = json.dumps(purge()).encode()
    for body in (
        good.replace(b'"table_name"', b'"table_name": "customers", "table_name"'),
        good.replace(b'"common_payload"', b'"common_payload": {}, "common_payload"'),
        good.replace(b'"properties": {}', b'"config": {"a": "1", "\\u0061": "2"}'),
    ):
        assert body != good
        assert "twice" in error_of(post(api, body), 400, "BAD_REQUEST")
    assert hand.store.find(TaskFilter(), limit=1) == []


def test_api_names_the_known_operations_for_an_unknown_one(api: Api) -> None:
    for name in ("TABLE_COMPACTION", "table_purge", "x" * 255, "'; drop table tasks"):
        body = changed(f"{COMMON}/operation_type", name)
        message = error_of(post(api, body), 400, "UNKNOWN_OPERATION_TYPE")
        for known in ("TABLE_PURGE", "SYNCHRONOUS_TABLE_PURGE", "PURGE_TABLE", "DATA_FILE_PURGE"):
            assert known in message


def test_api_checks_the_properties_of_a_purge(api: Api, hand: Hand) -> None:
    message = error_of(
        post(api, changed("operation_parameters/properties", {"dryrun": "true"})),
        400,
        "VALIDATION_FAILED",
    )
    assert "unknown properties dryrun" in message
    assert "deleteMarkerFiles, dropTable, dryRun, skipTrash" in message
    for name, value in (("skipTrash", "false"), ("deleteMarkerFiles", "true")):
        body = changed("operation_parameters/properties", {name: value})
        assert name in error_of(post(api, body), 400, "VALIDATION_FAILED")
    api.submit("a", skipTrash="true", deleteMarkerFiles="false", dryRun="true")
    api.submit("b", skipTrash=True, deleteMarkerFiles=False, dryRun=False)  # type: ignore[arg-type]


def test_api_drops_unknown_fields(api: Api, hand: Hand) -> None:
    payload = purge()
    payload["x"] = payload["common_payload"]["x"] = payload["operation_parameters"]["x"] = "odd"
    payload["operation_parameters"]["table_identity"]["x"] = "odd"
    response = api.post("/v1/tasks", json=payload)
    assert response.status_code == 202
    assert "odd" not in api.get("/v1/tasks").text


def test_api_takes_names_with_dots_as_tables_of_their_own(api: Api) -> None:
    def submit(levels: list[str], table: str) -> str:
        payload = purge(table)
        payload["operation_parameters"]["table_identity"]["namespace_levels"] = levels
        response = api.post("/v1/tasks", json=payload)
        assert response.status_code == 202, response.text
        return str(api.task(response.json()["delegation_task_id"])["subject"])

    assert submit(["a", "b"], "c") == "demo.a.b.c"
    assert submit(["a.b"], "c") == "demo.`a.b`.c"
    assert submit(["a"], "b.c") == "demo.a.`b.c`"
    assert submit(["`a.b`"], "c") == "demo.```a.b```.c"
    assert submit(["über"], "tische ☃") == "demo.über.tische ☃"


def test_api_reports_many_mistakes_up_to_a_bound_and_repeats_no_values(api: Api) -> None:
    levels = [f"secret-{number}\n" for number in range(60)]
    message = error_of(
        post(api, changed(f"{IDENTITY}/namespace_levels", levels)), 400, "VALIDATION_FAILED"
    )
    assert "and 50 more" in message
    assert "secret" not in message
    assert len(message) < 2000
