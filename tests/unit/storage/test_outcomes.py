"""What the client's errors mean, by the texts that it really gives."""

import pytest
from obstore.exceptions import (
    BaseError,
    GenericError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from moraine.storage.outcomes import MISSING, Failure, Kind, classify, outcome_of

DUMP = '\n\nDebug source:\nGeneric {\n    path: "Server returned non-2xx status code: 503",\n}'


def answered(error: type[Exception], status: str, code: str = "", path: str = "k1,k2") -> Exception:
    body = f"<Error><Code>{code}</Code><Message>sig hush</Message></Error>" if code else ""
    return error(
        f"Said of {path}: Error performing POST http://h/b?delete in 1ms - "
        f"Server returned non-2xx status code: {status}: {body}{DUMP}"
    )


def of_key(code: str, key: str = "k2") -> Exception:
    return GenericError(
        f"Generic S3 error: DeleteObjects request failed for key {key}: hush (code: {code}){DUMP}"
    )


def of_blob(status: int, key: str = "k2") -> Exception:
    said = f"Bulk delete request failed for key {key}: hush (code: {status})"
    if status == 404:
        return FileNotFoundError(f"Object at location {key} not found: {said}{DUMP}")
    return GenericError(f"Generic MicrosoftAzure error: {said}{DUMP}")


def of_some_keys(*codes: str) -> Exception:
    errors = "".join(f"<Error><Key>k</Key><Code>{code}</Code></Error>" for code in codes)
    return GenericError(
        "Generic S3 error: Error performing POST http://h/b?delete in 1ms - Server returned "
        f"error response: <DeleteResult><Deleted><Key>k1</Key></Deleted>{errors}</DeleteResult>"
        + DUMP
    )


def broken(kind: str) -> Exception:
    return GenericError(
        "Generic S3 error: Error performing POST http://h/b?delete in 1s - HTTP error: error "
        f"sending request\n\nDebug source:\nHttp(\n HttpError {{\n    kind: {kind},\n"
    )


@pytest.mark.parametrize(
    ("error", "kind", "reason", "is_of_key"),
    [
        (
            answered(PermissionDeniedError, "403 Forbidden", "AccessDenied"),
            Kind.REFUSED,
            "HTTP 403 AccessDenied",
            True,
        ),
        (
            answered(PermissionDeniedError, "403 Forbidden", path="<Code>SlowDown</Code>"),
            Kind.REFUSED,
            "HTTP 403",
            True,
        ),
        (
            answered(PermissionDeniedError, "403 Forbidden", "InvalidAccessKeyId"),
            Kind.UNAUTHENTICATED,
            "HTTP 403 InvalidAccessKeyId",
            False,
        ),
        (
            answered(GenericError, "400 Bad Request", "ExpiredToken"),
            Kind.UNAUTHENTICATED,
            "HTTP 400 ExpiredToken",
            False,
        ),
        (
            answered(UnauthenticatedError, "401 Unauthorized"),
            Kind.UNAUTHENTICATED,
            "HTTP 401",
            False,
        ),
        (answered(FileNotFoundError, "404 Not Found"), Kind.MISSING, "HTTP 404", True),
        (
            answered(FileNotFoundError, "404 Not Found", "NoSuchBucket"),
            Kind.REFUSED,
            "HTTP 404 NoSuchBucket",
            False,
        ),
        (
            answered(GenericError, "503 Service Unavailable", "SlowDown"),
            Kind.THROTTLED,
            "HTTP 503 SlowDown",
            False,
        ),
        (answered(GenericError, "429 Too Many Requests"), Kind.THROTTLED, "HTTP 429", False),
        (
            answered(GenericError, "500 Internal Server Error", "InternalError"),
            Kind.BROKEN,
            "HTTP 500 InternalError",
            False,
        ),
        (answered(GenericError, "502 Bad Gateway"), Kind.BROKEN, "HTTP 502", False),
        (answered(GenericError, "400 Bad Request"), Kind.REFUSED, "HTTP 400", False),
        (of_key("AccessDenied"), Kind.REFUSED, "AccessDenied", True),
        (of_key("AccessDenied", "a (code: SlowDown)\nb"), Kind.REFUSED, "AccessDenied", True),
        (of_key("NoSuchKey"), Kind.MISSING, "NoSuchKey", True),
        (of_key("InternalError"), Kind.BROKEN, "InternalError", True),
        (of_key("SomethingNew"), Kind.BROKEN, "SomethingNew", True),
        (of_blob(404), Kind.MISSING, "HTTP 404", True),
        (of_blob(412), Kind.REFUSED, "HTTP 412", True),
        (of_blob(412, "a (code: 503)\nb"), Kind.REFUSED, "HTTP 412", True),
        (of_blob(503), Kind.THROTTLED, "HTTP 503", True),
        (of_blob(500), Kind.BROKEN, "HTTP 500", True),
        (of_some_keys("SlowDown"), Kind.THROTTLED, "SlowDown", True),
        (of_some_keys("AccessDenied", "SlowDown"), Kind.THROTTLED, "SlowDown", True),
        (broken("Timeout"), Kind.BROKEN, "no answer in time", False),
        (broken("Connect"), Kind.BROKEN, "no connection could be made", False),
        (broken("Interrupted"), Kind.BROKEN, "the connection broke", False),
        (BaseError("what?"), Kind.BROKEN, "the request failed", False),
        (
            InvalidPathError('Encountered object with invalid path: "t/../x"'),
            Kind.REFUSED,
            "its key cannot be addressed",
            True,
        ),
        (ValueError("Could not parse path"), Kind.REFUSED, "its key cannot be addressed", True),
    ],
)
def test_errors_of_the_client_are_classified(
    error: Exception, kind: Kind, reason: str, is_of_key: bool
) -> None:
    problem = classify(error)
    assert (problem.kind, problem.reason, problem.of_key) == (kind, reason, is_of_key)


def test_only_what_the_store_refuses_for_good_is_final() -> None:
    assert outcome_of(classify(of_key("AccessDenied"))) == Failure("AccessDenied", refused=True)
    assert outcome_of(classify(of_key("NoSuchKey"))) == MISSING
    for error in (of_key("SlowDown"), broken("Timeout"), of_key("ExpiredToken")):
        outcome = outcome_of(classify(error))
        assert isinstance(outcome, Failure)
        assert not outcome.refused
