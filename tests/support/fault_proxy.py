"""A way to an S3 store that a test can make fail, and that counts what is deleted.

    with FaultProxy(store.endpoint, {store.access_key: store.secret_key}) as proxy:
        proxy.add(refuse("SlowDown", operation="DeleteObjects", times=3))
        proxy.add(fail_keys("AccessDenied", key=r"/data/.*7\\.parquet$"))
        ...  # a client of proxy.url
        assert proxy.deleted["s3://lake/orders/data/1.parquet"] == 1

Rules are looked at in the order in which they were added; the first that answers or resets wins.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.relay import Answer, Forward, Relay, Request, Reset

_STATUS = {
    "AccessDenied": 403,
    "ExpiredToken": 400,
    "InternalError": 500,
    "NotImplemented": 501,
    "RequestTimeout": 400,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
    "TooManyRequests": 429,
}
_XML = (("Content-Type", "application/xml"),)
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/")

ET.register_namespace("", _NAMESPACE)


@dataclass(frozen=True)
class Call:
    """A request as the store understands it."""

    operation: str
    """GetObject, HeadObject, PutObject, DeleteObject, DeleteObjects, ListObjects, …"""
    uris: tuple[str, ...]
    """What it is about, as s3://bucket/key."""
    access_key: str
    region: str
    at: float
    """Seconds on the monotonic clock."""
    status: int = 0
    """0 if the connection was reset instead."""


@dataclass
class Rule:
    """What happens to requests that match. Patterns are regular expressions: `operation` must be
    the whole name, `key` is searched for in s3://bucket/key."""

    kind: Literal["refuse", "reset", "delay", "keys"]
    operation: str = ".*"
    key: str = ""
    times: int | None = None
    """How often; for single keys of a DeleteObjects, how often for each key."""
    probability: float = 1.0
    code: str = ""
    seconds: float = 0.0
    forward: bool = False
    """Whether the store still does what it was asked for, before the client hears otherwise."""
    hits: int = 0
    by_key: Counter[str] = field(default_factory=Counter)

    def is_about(self, call: Call) -> bool:
        if not re.fullmatch(self.operation, call.operation):
            return False
        return not self.key or any(re.search(self.key, uri) for uri in call.uris)


def refuse(code: str, **match: Any) -> Rule:
    """Answer with an error of S3 (AccessDenied, SlowDown, TooManyRequests, InternalError, …)."""
    assert code in _STATUS, f"one of {', '.join(_STATUS)}"
    return Rule("refuse", code=code, **match)


def reset_before(**match: Any) -> Rule:
    """Reset the connection; the store hears nothing."""
    return Rule("reset", **match)


def reset_after(**match: Any) -> Rule:
    """Reset the connection once the store has done what it was asked for."""
    return Rule("reset", forward=True, **match)


def delay(seconds: float, **match: Any) -> Rule:
    """Wait, then go on with the next rules."""
    return Rule("delay", seconds=seconds, **match)


def fail_keys(code: str, *, key: str, forward: bool = False, **match: Any) -> Rule:
    """Let a DeleteObjects succeed for the others, but not for the keys that match: these are not
    deleted (or are, with `forward`, all the same), and the answer names them with this code."""
    return Rule("keys", operation="DeleteObjects", key=key, code=code, forward=forward, **match)


class FaultProxy(Relay):
    def __init__(self, endpoint: str, secrets: Mapping[str, str], seed: int = 0) -> None:
        """`secrets` by access key: a DeleteObjects that loses some keys is signed anew."""
        super().__init__(endpoint)
        self._secrets = dict(secrets)
        self._expiry: dict[str, float] = {}
        self._rules: list[Rule] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        self.asked: Counter[str] = Counter()
        """How often a client asked for the deletion of an object."""
        self.deleted: Counter[str] = Counter()
        """How often the store confirmed it (also where the client was not told)."""

    def add(self, *rules: Rule) -> None:
        with self._lock:
            self._rules += rules

    def clear(self) -> None:
        """Forget the rules and what was counted; lifetimes stay."""
        with self._lock:
            self._rules.clear()
            self.calls.clear()
            self.asked.clear()
            self.deleted.clear()

    def lend(self, access_key: str, secret: str, expires_at: float | None = None) -> None:
        """Make temporary keys known. From `expires_at` (epoch seconds) on they get ExpiredToken,
        whatever the store would say: no STS gives less than a quarter of an hour."""
        with self._lock:
            self._secrets[access_key] = secret
            if expires_at is not None:
                self._expiry[access_key] = expires_at

    def count(self, operation: str = ".*", *, status: int | None = None) -> int:
        """How many requests there were; 0 is the status of a reset."""
        with self._lock:
            return sum(
                bool(re.fullmatch(operation, call.operation)) and status in (None, call.status)
                for call in self.calls
            )

    def access_keys(self, operation: str = ".*") -> list[str]:
        """Who called, each once, in the order in which they appeared."""
        with self._lock:
            found = [c.access_key for c in self.calls if re.fullmatch(operation, c.operation)]
        return list(dict.fromkeys(found))

    def answer(self, request: Request, forward: Forward) -> Answer:
        call = _understand(request)
        if call.operation.startswith("DeleteObject"):
            with self._lock:
                self.asked.update(call.uris)
        status = 0
        try:
            answer = self._answer(call, request, forward)
            status = answer.status
            return answer
        finally:
            with self._lock:
                self.calls.append(replace(call, status=status))

    def _answer(self, call: Call, request: Request, forward: Forward) -> Answer:
        if self._expiry.get(call.access_key, time.time() + 1) <= time.time():
            return _error("ExpiredToken", call)
        failed: dict[str, str] = {}
        spared: set[str] = set()
        reset = False
        for rule in self._matching(call):
            if rule.kind == "delay":
                self.stopping.wait(rule.seconds)
            elif rule.kind == "refuse":
                return _error(rule.code, call)
            elif rule.kind == "reset" and not rule.forward:
                raise Reset
            elif rule.kind == "reset":
                reset = True
            else:
                hit = self._keys_of(rule, call)
                failed.update(dict.fromkeys(hit, rule.code))
                if not rule.forward:
                    spared.update(hit)
        answer = self._forward(call, request, forward, spared)
        if failed and answer.status == 200:
            answer = _with_errors(answer, failed)
        if reset:
            raise Reset
        return answer

    def _matching(self, call: Call) -> Iterable[Rule]:
        with self._lock:
            rules = list(self._rules)
        for rule in rules:
            if not rule.is_about(call):
                continue
            if rule.kind != "keys":
                with self._lock:
                    if rule.hits == rule.times or self._random.random() >= rule.probability:
                        continue
                    rule.hits += 1
            yield rule

    def _keys_of(self, rule: Rule, call: Call) -> list[str]:
        with self._lock:
            hit = [
                uri
                for uri in call.uris
                if re.search(rule.key, uri)
                and (rule.times is None or rule.by_key[uri] < rule.times)
                and self._random.random() < rule.probability
            ]
            rule.hits += bool(hit)
            rule.by_key.update(hit)
        return hit

    def _forward(self, call: Call, request: Request, forward: Forward, spared: set[str]) -> Answer:
        kept = [uri for uri in call.uris if uri not in spared]
        if spared and not kept:
            empty = f'<DeleteResult xmlns="{_NAMESPACE}"></DeleteResult>'
            return Answer(200, empty.encode(), _XML)
        answer = forward(self._resigned(call, request, spared) if spared else request)
        if call.operation.startswith("DeleteObject") and answer.status < 300:
            bucket = _bucket(request)
            kept_from_it = {f"s3://{bucket}/{key}" for key in _failed_keys(answer)}
            with self._lock:
                self.deleted.update(uri for uri in kept if uri not in kept_from_it)
        return answer

    def _resigned(self, call: Call, request: Request, spared: set[str]) -> Request:
        """The same request of the same principal, without some keys."""
        bucket = _bucket(request)
        root = ET.fromstring(request.body)
        for entry in root.findall("{*}Object"):
            if f"s3://{bucket}/{entry.findtext('{*}Key')}" in spared:
                root.remove(entry)
        body = ET.tostring(root)
        fresh = AWSRequest(
            "POST",
            f"http://{request.header('Host')}{request.target}",
            data=body,
            headers={
                "Host": request.header("Host"),
                "Content-Type": "application/xml",
                "Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode(),
            },
        )
        token = request.header("X-Amz-Security-Token") or None
        credentials = Credentials(call.access_key, self._secrets[call.access_key], token)
        S3SigV4Auth(credentials, "s3", call.region).add_auth(fresh)
        return replace(request, headers=tuple(fresh.headers.items()), body=body)


def _bucket(request: Request) -> str:
    return request.path.strip("/").partition("/")[0]


def _understand(request: Request) -> Call:
    bucket, _, key = request.path.lstrip("/").partition("/")
    signed = _CREDENTIAL.search(request.header("Authorization"))
    access_key, region = signed.groups() if signed else ("", "us-east-1")
    uris: tuple[str, ...] = (f"s3://{bucket}/{key}",) if key else ()
    if request.method == "POST" and "delete" in request.query:
        operation = "DeleteObjects"
        entries = ET.fromstring(request.body).iterfind("{*}Object/{*}Key")
        uris = tuple(f"s3://{bucket}/{entry.text}" for entry in entries)
    elif key:
        operation = f"{request.method.title()}Object"
    elif request.method == "GET" and bucket:
        operation = "ListObjects"
        uris = (f"s3://{bucket}/{request.query.get('prefix', '')}",)
    else:
        operation = f"{request.method.title()}{'Bucket' if bucket else 'Service'}"
    return Call(operation, uris, access_key, region, time.monotonic())


def _failed_keys(answer: Answer) -> list[str]:
    if b"<Error>" not in answer.body:
        return []
    return [key.text or "" for key in ET.fromstring(answer.body).iterfind("{*}Error/{*}Key")]


def _with_errors(answer: Answer, failed: Mapping[str, str]) -> Answer:
    root = ET.fromstring(answer.body)
    keys = {uri.removeprefix("s3://").partition("/")[2]: code for uri, code in failed.items()}
    for entry in root.findall("{*}Deleted"):
        if entry.findtext("{*}Key") in keys:
            root.remove(entry)
    for key, code in keys.items():
        error = ET.SubElement(root, f"{{{_NAMESPACE}}}Error")
        for name, text in (("Key", key), ("Code", code), ("Message", _say(code))):
            ET.SubElement(error, f"{{{_NAMESPACE}}}{name}").text = text
    return replace(answer, body=ET.tostring(root))


def _error(code: str, call: Call) -> Answer:
    resource = escape(call.uris[0]) if call.uris else ""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>{_say(code)}</Message><Resource>{resource}</Resource>"
        "<RequestId>fault-proxy</RequestId></Error>"
    )
    return Answer(_STATUS[code], body.encode(), _XML)


def _say(code: str) -> str:
    return f"{code}, says the fault proxy."
