"""A catalog that asks who calls and vends temporary keys, made of one that does neither.

    with VendingCatalog(catalog_url, store, proxy) as catalog:
        catalog.credential_seconds = 4
        catalog.fail("load", 500, times=1)
        ...  # a client of catalog.url with catalog.client_id and catalog.client_secret
        assert catalog.loads["shop.orders"] == 2

The keys are real ones of the store's STS, each with a session policy for one prefix of one table.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import jwt

from support.fault_proxy import FaultProxy
from support.relay import Answer, Forward, Relay, Request, Reset
from support.seaweedfs import SeaweedFS, SessionKeys

_LOAD = re.compile(r"/v1/(?:.+/)?namespaces/([^/]+)/tables/([^/]+)")
_CREATE = re.compile(r"/v1/(?:.+/)?namespaces/([^/]+)/(?:tables|register)")
_TOKENS = "/v1/oauth/tokens"
_LEVELS = "\x1f"
_SHORTEST_SESSION = 900
_ERRORS = {401: "NotAuthorizedException", 403: "ForbiddenException"}

What = Literal["token", "load", "all"]


@dataclass(frozen=True)
class Vend:
    table: str
    prefixes: tuple[str, ...]
    access_key: str
    expires_at: float
    """Epoch seconds, as everywhere here."""


@dataclass
class _Trouble:
    what: What
    status: int
    """0 for no answer at all."""
    times: int | None
    after: int


@dataclass
class _Disguise:
    changes: dict[str, str]
    after: int


@dataclass(frozen=True)
class _Asked:
    """What a request is about."""

    what: Literal["token", "load", "create", "other"]
    table: str = ""


@dataclass
class _Tokens:
    lifetimes: dict[str, float] = field(default_factory=dict)

    def issue(self, seconds: float) -> str:
        token = secrets.token_urlsafe(24)
        self.lifetimes[token] = time.time() + seconds
        return token

    def accept(self, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and self.lifetimes.get(token, 0) > time.time()


class VendingCatalog(Relay):
    client_id = "moraine"
    scope = "catalog"

    def __init__(self, upstream: str, store: SeaweedFS, proxy: FaultProxy | None = None) -> None:
        """With a proxy, clients are sent there for their files, and lifetimes below 15 minutes
        are possible."""
        super().__init__(upstream)
        self._store = store
        self._proxy = proxy
        self._tokens = _Tokens()
        self._lock = threading.Lock()
        self._troubles: list[_Trouble] = []
        self._disguises: dict[str, _Disguise] = {}
        self._released = threading.Event()
        self.client_secret = secrets.token_urlsafe(16)
        self.client_key: Any = None
        """The client's public key. With one, its secret is refused: see `private_key_jwt`."""
        self.token_seconds = 3600.0
        self.credential_seconds = 3600.0
        self.vends_in: set[Literal["storage-credentials", "config"]] = {"storage-credentials"}
        """Where the keys are. In `config` they are for all prefixes of the table at once."""
        self.refuses_to_vend = False
        """As Polaris without an STS: whoever asks for keys gets 400 and no table."""
        self.loads: Counter[str] = Counter()
        """By namespace.table, whether they were answered well or not."""
        self.vends: list[Vend] = []
        self.tokens_issued = 0

    # --- What a test can tell it ---------------------------------------------------------------

    def fail(self, what: What, status: int, *, times: int | None = None, after: int = 0) -> None:
        """Answer with an error: to requests for a token, to loads of a table, or to all. `after`
        lets so many pass before."""
        with self._lock:
            self._troubles.append(_Trouble(what, status, times, after))

    def hang(self, what: What, *, times: int | None = None, after: int = 0) -> None:
        """Take requests and answer none, until `heal`."""
        self.fail(what, 0, times=times, after=after)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def vend_nothing(self) -> None:
        self.vends_in = set()

    def disguise(
        self,
        table: str,
        *,
        uuid: str | None = None,
        metadata_location: str | None = None,
        location: str | None = None,
        after: int = 0,
    ) -> None:
        """Let namespace.table look like another when it is loaded, from the load after so many
        on."""
        given = {"uuid": uuid, "metadata_location": metadata_location, "location": location}
        changes = {name: value for name, value in given.items() if value is not None}
        with self._lock:
            self._disguises[table] = _Disguise(changes, after)

    def revoke_tokens(self) -> None:
        """Every token handed out so far is worth nothing."""
        self._tokens.lifetimes.clear()

    def heal(self) -> None:
        """As it was made, and what it counted forgotten."""
        with self._lock:
            self._troubles.clear()
            self._disguises.clear()
            self.loads.clear()
            self.vends.clear()
            self.tokens_issued = 0
            self.client_key = None
            self.token_seconds = self.credential_seconds = 3600.0
            self.vends_in = {"storage-credentials"}
            self.refuses_to_vend = False
            self._released.set()
            self._released = threading.Event()

    def spark_properties(self) -> dict[str, str]:
        """For `add_catalog`: Spark then reads and writes with vended keys."""
        return {
            "credential": f"{self.client_id}:{self.client_secret}",
            "scope": self.scope,
            "oauth2-server-uri": f"{self.url}{_TOKENS}",
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
        }

    # --- Answers -------------------------------------------------------------------------------

    def answer(self, request: Request, forward: Forward) -> Answer:
        asked = _understand(request)
        if asked.what == "load":
            with self._lock:
                self.loads[asked.table] += 1
        if (status := self._trouble_for(asked)) is not None:
            return self._fail_with(status)
        if asked.what == "token":
            return self._issue_token(request)
        if not self._tokens.accept(request.header("Authorization")):
            return _error(401, "The token is missing, unknown or expired.")
        wants_keys = "vended-credentials" in request.header("X-Iceberg-Access-Delegation")
        if self.refuses_to_vend and wants_keys and asked.what != "other":
            return _error(400, "Credential vending was requested, but no credentials are available")
        if asked.what == "other" and request.path != "/v1/config":
            return forward(request)
        # The catalog behind may not see the token, and its answer has to be readable here.
        answer = forward(request.without("Authorization", "Accept-Encoding"))
        if answer.status != 200:
            return answer
        content = _without_secrets(json.loads(answer.body))
        if asked.what != "other":
            content = self._dress(content, asked, request)
        return replace(answer, body=json.dumps(content).encode())

    def _trouble_for(self, asked: _Asked) -> int | None:
        with self._lock:
            for trouble in self._troubles:
                if trouble.what not in (asked.what, "all") or trouble.times == 0:
                    continue
                if trouble.after:
                    trouble.after -= 1
                    continue
                if trouble.times is not None:
                    trouble.times -= 1
                return trouble.status
        return None

    def _fail_with(self, status: int) -> Answer:
        if status:
            return _error(status, f"The test wants a {status}.")
        released = self._released
        while not released.wait(0.05) and not self.stopping.is_set():
            pass
        raise Reset

    def _issue_token(self, request: Request) -> Answer:
        form = dict(parse_qsl(request.body.decode()))
        given = (form.get("client_id", ""), form.get("client_secret", ""))
        kind, _, basic = request.header("Authorization").partition(" ")
        if kind.lower() == "basic":
            name, _, secret = base64.b64decode(basic).decode().partition(":")
            given = (name, secret)
        if form.get("grant_type") != "client_credentials":
            return _oauth_error(400, "unsupported_grant_type")
        is_the_client = given == (self.client_id, self.client_secret)
        if self.client_key:
            is_the_client = self._signed_by_the_client(form.get("client_assertion", ""))
        if not is_the_client:
            return _oauth_error(401, "invalid_client")
        if form.get("scope") != self.scope:
            return _oauth_error(400, "invalid_scope")
        with self._lock:
            self.tokens_issued += 1
            token = self._tokens.issue(self.token_seconds)
        return _json(
            200,
            {
                "access_token": token,
                "token_type": "bearer",
                "expires_in": int(self.token_seconds),
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "scope": self.scope,
            },
        )

    def _signed_by_the_client(self, assertion: str) -> bool:
        endpoint = f"{self.url}{_TOKENS}"
        try:
            claims = jwt.decode(assertion, self.client_key, ["ES256"], audience=endpoint)
        except jwt.PyJWTError:
            return False
        return bool(claims["sub"] == self.client_id)

    def _dress(self, content: dict[str, Any], asked: _Asked, request: Request) -> dict[str, Any]:
        metadata = content["metadata"]
        if "vended-credentials" in request.header("X-Iceberg-Access-Delegation"):
            prefixes = _prefixes(metadata)
            table = asked.table or metadata["location"]
            config = content.setdefault("config", {})
            if "storage-credentials" in self.vends_in:
                content["storage-credentials"] = [
                    {"prefix": prefix, "config": self._vend(table, prefix)} for prefix in prefixes
                ]
            if "config" in self.vends_in:
                config |= self._vend(table, *prefixes)
        if asked.what == "load":
            self._disguise(content, asked.table)
        return content

    def _disguise(self, content: dict[str, Any], table: str) -> None:
        with self._lock:
            disguise = self._disguises.get(table)
            if disguise is None:
                return
            if disguise.after:
                disguise.after -= 1
                return
        changes = disguise.changes
        metadata = content["metadata"]
        metadata["table-uuid"] = changes.get("uuid", metadata["table-uuid"])
        metadata["location"] = changes.get("location", metadata["location"])
        content["metadata-location"] = changes.get(
            "metadata_location", content["metadata-location"]
        )

    def _vend(self, table: str, *prefixes: str) -> dict[str, str]:
        if self.credential_seconds < _SHORTEST_SESSION:
            assert self._proxy is not None, "only a proxy can end a session that early"
        seconds = max(_SHORTEST_SESSION, int(self.credential_seconds))
        keys = self._store.assume_role(_policy(prefixes), seconds)
        expires_at = time.time() + self.credential_seconds
        if self._proxy is not None:
            self._proxy.lend(keys.access_key, keys.secret_key, expires_at)
        with self._lock:
            self.vends.append(Vend(table, prefixes, keys.access_key, expires_at))
        return self._properties(keys, expires_at)

    def _properties(self, keys: SessionKeys, expires_at: float) -> dict[str, str]:
        place = self._store.place()
        if self._proxy is not None:
            place["s3.endpoint"] = self._proxy.url
        expiry = {"s3.session-token-expires-at-ms": str(int(expires_at * 1000))}
        return {**place, **keys.properties(), **expiry}


def _understand(request: Request) -> _Asked:
    path = request.target.partition("?")[0]
    if path == _TOKENS:
        return _Asked("token")
    if request.method == "GET" and (load := _LOAD.fullmatch(path)):
        levels = unquote(load[1]).replace(_LEVELS, ".")
        return _Asked("load", f"{levels}.{unquote(load[2])}")
    if request.method == "POST" and _CREATE.fullmatch(path):
        return _Asked("create")
    return _Asked("other")


def _prefixes(metadata: dict[str, Any]) -> list[str]:
    """Where the files of a table may be."""
    properties = metadata.get("properties", {})
    own = [properties.get("write.data.path"), properties.get("write.metadata.path")]
    found = [metadata["location"], *filter(None, own)]
    return list(dict.fromkeys(prefix.rstrip("/") for prefix in found))


def _policy(prefixes: tuple[str, ...]) -> dict[str, Any]:
    keys = [re.sub("^s3a?://", "", prefix) for prefix in prefixes]
    buckets = {key.partition("/")[0] for key in keys}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
                "Resource": [f"arn:aws:s3:::{key}/*" for key in keys],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [f"arn:aws:s3:::{bucket}" for bucket in buckets],
                "Condition": {
                    "StringLike": {"s3:prefix": [f"{key.partition('/')[2]}/*" for key in keys]}
                },
            },
        ],
    }


def _without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that the catalog behind itself uses."""
    own = {"s3.access-key-id", "s3.secret-access-key", "s3.session-token"}
    kept = {name: value for name, value in content.items() if name != "storage-credentials"}
    for part in ("config", "defaults", "overrides"):
        if part in kept:
            kept[part] = {k: v for k, v in kept[part].items() if k not in own}
    return kept


def _json(status: int, content: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(content).encode())


def _error(status: int, message: str) -> Answer:
    kind = _ERRORS.get(status, "InternalServerError")
    return _json(status, {"error": {"message": message, "type": kind, "code": status}})


def _oauth_error(status: int, error: str) -> Answer:
    return _json(status, {"error": error, "error_description": f"{error}, says the catalog."})
