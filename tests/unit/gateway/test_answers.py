"""What the gateway says by itself, and what it keeps of what the catalog says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moraine.errors import BadRequest, LedgerUnavailable, MoraineError, PayloadTooLarge
from moraine.gateway.errors import (
    BadAnswer,
    CatalogUnknown,
    NameTaken,
    TableHidden,
    UpstreamSilent,
    UpstreamUnreachable,
    error_response,
)
from moraine.gateway.intake import Content
from moraine.gateway.mutations import CatalogMutation
from moraine.gateway.upstream import CatalogRequest, forwarded_headers
from moraine.http.keys import InvalidKey
from moraine.iceberg.paths import CatalogPaths, parse, split_path
from moraine.idempotency.model import Response, Scope
from moraine.idempotency.service import (
    KeyConflict,
    RepetitionRefused,
    ReplayFailed,
    RequestInProgress,
)

# As docs/gateway.md has it.
ERRORS = [
    (InvalidKey(), 400, "BadRequestException", None),
    (BadRequest(), 400, "BadRequestException", None),
    (CatalogUnknown(), 404, "NotFoundException", None),
    (TableHidden(), 404, "NoSuchTableException", None),
    (NameTaken(), 409, "AlreadyExistsException", None),
    (RequestInProgress(), 503, "RequestInProgressException", "request_in_progress"),
    (RepetitionRefused(401), 503, "ServiceUnavailableException", None),
    (PayloadTooLarge(), 413, "BadRequestException", None),
    (KeyConflict(), 422, "UnprocessableEntityException", "idempotency_key_conflict"),
    (ReplayFailed(), 500, "InternalServerError", "idempotency_replay_failed"),
    (MoraineError(), 500, "InternalServerError", None),
    (BadAnswer(), 502, "CommitStateUnknownException", None),
    (UpstreamUnreachable(), 503, "ServiceUnavailableException", None),
    (LedgerUnavailable(), 503, "ServiceUnavailableException", None),
    (UpstreamSilent(), 504, "CommitStateUnknownException", None),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "subtype"), ERRORS, ids=[type(e).__name__ for e, *_ in ERRORS]
)
def test_errors_are_in_icebergs_form(
    error: MoraineError, status: int, kind: str, subtype: str | None
) -> None:
    response = error_response(error)
    assert response.status == status
    assert response.header("content-type") == "application/json"
    model = json.loads(response.body)["error"]
    assert model.pop("message") == str(error) != ""
    expected = {"type": kind, "code": status} | ({"subtype": subtype} if subtype else {})
    assert model == expected


def test_who_is_to_come_back_is_told_when() -> None:
    assert error_response(RequestInProgress()).header("retry-after") == "1"
    assert error_response(UpstreamUnreachable()).header("retry-after") == "1"
    assert error_response(KeyConflict()).header("retry-after") is None


# --- What is kept ---------------------------------------------------------------------------

SECRET = "AKIA-never-to-be-kept"


def mutation() -> CatalogMutation:
    route = parse("POST", split_path("/v1/namespaces/n/tables"), CatalogPaths())
    scope = Scope("demo", "test", "POST", route.path, "k")
    request = CatalogRequest("POST", route.path, "", [])
    return CatalogMutation(scope, route, None, request, Content())  # type: ignore[arg-type]


def kept(body: Any, **headers: str) -> Response:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return mutation().without_secrets(Response(200, given, text))


def test_credentials_are_not_kept() -> None:
    metadata = {"location": "s3://lake/t", "properties": {"owner": "ana"}}
    answer = {
        "metadata-location": "s3://lake/t/1.json",
        "metadata": metadata,
        "config": {"s3.secret-access-key": SECRET},
        "storage-credentials": [{"prefix": "s3://lake", "config": {"token": SECRET}}],
    }
    response = kept(answer)
    assert SECRET.encode() not in response.body
    assert json.loads(response.body) == {
        "metadata-location": "s3://lake/t/1.json",
        "metadata": metadata,
    }


def test_an_answer_without_credentials_is_kept_to_the_byte() -> None:
    body = b'{ "metadata-location" : "x",\n "metadata": {} }'
    assert kept(body).body == body


@pytest.mark.parametrize("body", [b'<p class="config">', b'["config"]', b'"config"', b'{"config"'])
def test_an_answer_that_is_no_object_is_kept_as_it_is(body: bytes) -> None:
    assert kept(body).body == body


def test_of_the_headers_only_what_will_be_true_of_a_replay() -> None:
    response = kept(
        {},
        content_type="application/json",
        etag='"1"',
        set_cookie="a",
        content_length="2",
        authorization="x",
        server="y",
        content_encoding="gzip",
    )
    assert dict(response.headers) == {"content-type": "application/json", "etag": '"1"'}


# --- What is sent on ------------------------------------------------------------------------


def test_headers_of_one_connection_stay_there() -> None:
    given = [
        (b"Host", b"gateway"),
        (b"Authorization", b"Bearer t"),
        (b"Connection", b"keep-alive, X-Own"),
        (b"X-Own", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"TE", b"trailers"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"Proxy-Authorization", b"secret"),
        (b"X-Iceberg-Access-Delegation", b"vended-credentials"),
        (b"X-Twice", b"1"),
        (b"X-Twice", b"2"),
    ]
    assert forwarded_headers(given) == [
        ("authorization", "Bearer t"),
        ("x-iceberg-access-delegation", "vended-credentials"),
        ("x-twice", "1"),
        ("x-twice", "2"),
    ]


def test_a_look_at_something_else_is_by_the_same_caller() -> None:
    request = CatalogRequest(
        "POST",
        "/v1/namespaces/n/tables/t",
        "a=b",
        [
            ("authorization", "Bearer t"),
            ("content-type", "application/json"),
            ("content-length", "9"),
            ("if-none-match", '"1"'),
            ("accept-encoding", "gzip"),
            ("range", "bytes=1-"),
            ("x-iceberg-access-delegation", "vended-credentials"),
        ],
    )
    looking = request.reading("/v1/config", "q=1")
    assert (looking.method, looking.path, looking.query) == ("GET", "/v1/config", "q=1")
    assert looking.headers == [
        ("authorization", "Bearer t"),
        ("x-iceberg-access-delegation", "vended-credentials"),
    ]


def test_a_request_shows_no_token_in_its_repr() -> None:
    assert "t0ken" not in repr(
        CatalogRequest("GET", "/v1/x", "", [("authorization", "Bearer t0ken")])
    )
