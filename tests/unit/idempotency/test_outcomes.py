"""Which answers are the outcome of a request, to be kept and given again."""

from __future__ import annotations

import pytest

from moraine.idempotency.model import Record, Response, is_final, is_refusal

FINAL = [200, 201, 202, 204, 400, 404, 405, 406, 409, 410, 411, 412, 413, 415, 422]
NOT_TRIED = [401, 403, 419, 421, 425, 429]
UNKNOWN = [408, 500, 501, 502, 503, 504, 507, 599]
NO_OUTCOME = [100, 101, 300, 301, 302, 304, 307, 308]


@pytest.mark.parametrize("status", FINAL)
def test_idempotency_outcome_is_final(status: int) -> None:
    assert is_final(status)
    assert not is_refusal(status)


@pytest.mark.parametrize("status", NOT_TRIED)
def test_idempotency_outcome_of_a_refusal_is_not_final(status: int) -> None:
    assert not is_final(status)
    assert is_refusal(status)


@pytest.mark.parametrize("status", UNKNOWN + NO_OUTCOME)
def test_idempotency_outcome_is_not_final(status: int) -> None:
    assert not is_final(status)
    assert not is_refusal(status)


def test_idempotency_record_without_an_outcome_has_no_response() -> None:
    assert Record("h", {}, 1, True, None, None, None).response is None


def test_idempotency_record_knows_whether_its_answer_is_whole() -> None:
    kept = Record("h", {}, 1, False, 200, {"etag": "x"}, b"{}")
    assert kept.complete
    assert kept.response == Response(200, (("etag", "x"),), b"{}")
    assert Record("h", {}, 1, False, 204, {}, b"").complete
    assert not Record("h", {}, 1, False, 200, {}, None).complete


def test_idempotency_answer_headers_ignore_case_and_are_replaced() -> None:
    response = Response(200, (("Content-Type", "a"), ("x", "1"))).with_header("content-type", "b")
    assert response.header("CONTENT-TYPE") == "b"
    assert response.headers == (("x", "1"), ("content-type", "b"))
