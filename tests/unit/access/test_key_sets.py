"""The keys of an issuer: fetched rarely, kept while the issuer is away, and from nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web

from moraine.access.key_sets import FileKeys, KeySetUnavailable, RemoteKeys, key_set_of
from moraine.settings import IssuerSettings
from support.issuer import Issuer

DISCOVERY = "/realms/lake/.well-known/openid-configuration"
FIRST, SECOND = Issuer("first"), Issuer("second")
STALE = timedelta(hours=1)
FRESH, PAUSE_AFTER_SUCCESS, PAUSE_AFTER_FAILURE = 300.0, 10.0, 5.0


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Publisher:
    """An issuer's web server. `answers` has what it says at a path: JSON, bytes, or a response."""

    clock: Clock = field(default_factory=Clock)
    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None

    @property
    def issuer(self) -> str:
        return f"{self.url}/realms/lake"

    def publish(self, *issuers: Issuer) -> None:
        self.answers[DISCOVERY] = {"issuer": self.issuer, "jwks_uri": f"{self.url}/keys"}
        self.answers["/keys"] = {"keys": [key for one in issuers for key in one.key_set["keys"]]}

    def keys(self, **settings: Any) -> RemoteKeys:
        given = {"issuer": self.issuer, "stale_keys": STALE, **settings}
        return RemoteKeys(IssuerSettings(**given), self.clock)

    def fetches(self) -> int:
        """How often the key set itself was asked for."""
        return self.asked.count("/keys")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.get(request.path)
        if isinstance(answer, int):
            return web.Response(status=answer)
        if callable(answer):
            return await answer(request)  # type: ignore[no-any-return]
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return web.Response(body=body, status=404 if answer is None else 200)


Scenario = Callable[[Publisher], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run a scenario with a publisher on the loopback interface."""

    async def run() -> None:
        publisher = Publisher()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", publisher.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        publisher.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        publisher.publish(FIRST)
        try:
            await scenario(publisher)
        finally:
            await runner.cleanup()

    asyncio.run(run())


async def is_unavailable(keys: RemoteKeys, key_id: str = "first") -> bool:
    try:
        await keys.find(key_id)
    except KeySetUnavailable:
        return True
    return False


async def is_unknown(keys: RemoteKeys, key_id: str) -> bool:
    try:
        await keys.find(key_id)
    except jwt.InvalidKeyError:
        return True
    return False


async def background_fetch(keys: RemoteKeys) -> None:
    """Wait for a fetch that no caller waits for."""
    if keys._fetching is not None:
        await keys._fetching


def test_keys_are_found_by_the_discovery_document() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        assert (await keys.find("first")).key_id == "first"
        assert (await keys.find(None)).key_id == "first", "the only key needs no id"
        assert issuer.asked == [DISCOVERY, "/keys"]

    play(scenario)


def test_a_slash_at_the_end_of_the_issuer_is_not_doubled() -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.answers[DISCOVERY]["issuer"] = f"{issuer.issuer}/"
        await issuer.keys(issuer=f"{issuer.issuer}/").find("first")
        assert issuer.asked[0] == DISCOVERY

    play(scenario)


def test_a_given_address_needs_no_discovery() -> None:
    async def scenario(issuer: Publisher) -> None:
        await issuer.keys(jwks_url=f"{issuer.url}/keys").find("first")
        assert issuer.asked == ["/keys"]

    play(scenario)


NESTED = b'{"a":' * 20_000


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"issuer": "https://other.example", "jwks_uri": "/keys"}, id="other issuer"),
        pytest.param({"issuer": "", "jwks_uri": "/keys"}, id="empty issuer"),
        pytest.param({"jwks_uri": "/keys"}, id="no issuer"),
        pytest.param({"issuer": True}, id="no jwks_uri"),
        pytest.param({"issuer": True, "jwks_uri": 7}, id="jwks_uri is no text"),
        pytest.param({"issuer": True, "jwks_uri": "file:///etc/passwd"}, id="a file"),
        pytest.param({"issuer": True, "jwks_uri": "not an address"}, id="no address"),
        pytest.param([], id="a list"),
        pytest.param(b"<html>", id="html"),
        pytest.param(b"\xff\xfe", id="bytes"),
        pytest.param(NESTED, id="nested"),
        pytest.param(500, id="500"),
        pytest.param(b"{}" + b" " * (1 << 20), id="too large"),
    ],
)
def test_a_discovery_document_that_is_not_of_this_issuer(document: Any) -> None:
    async def scenario(issuer: Publisher) -> None:
        given = document
        if isinstance(document, dict):
            given = dict(document)
            if given.get("issuer") is True:
                given["issuer"] = issuer.issuer
            if given.get("jwks_uri") == "/keys":
                given["jwks_uri"] = f"{issuer.url}/keys"
        issuer.answers[DISCOVERY] = given
        assert await is_unavailable(issuer.keys())
        assert issuer.fetches() == 0

    play(scenario)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b"<html>", id="html"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\xff", id="bytes"),
        pytest.param(NESTED, id="nested"),
        pytest.param([], id="a list"),
        pytest.param({}, id="no keys"),
        pytest.param({"keys": []}, id="an empty list"),
        pytest.param({"keys": None}, id="null"),
        pytest.param({"keys": 7}, id="a number"),
        pytest.param({"keys": [7]}, id="a list of numbers"),
        pytest.param({"keys": [{}]}, id="an empty key"),
        pytest.param({"keys": [{"kty": "RSA", "kid": "first", "n": "!", "e": "!"}]}, id="no key"),
        pytest.param({"keys": [{"kty": "XYZ", "kid": "first"}]}, id="an unknown kind"),
        pytest.param(404, id="404"),
        pytest.param(503, id="503"),
        pytest.param(b" " * (1 << 20) + b"{}", id="too large"),
    ],
)
def test_a_key_set_that_is_none(document: Any) -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.answers["/keys"] = document
        assert await is_unavailable(issuer.keys())

    play(scenario)


def test_a_key_set_that_does_not_end_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 256 << 20:
            await response.write(b" " * (1 << 18))
            sent += 1 << 18
        return response

    async def scenario(issuer: Publisher) -> None:
        issuer.answers["/keys"] = endless
        assert await is_unavailable(issuer.keys())
        assert sent < 64 << 20

    play(scenario)


@pytest.mark.parametrize("path", [DISCOVERY, "/keys"])
@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_not_followed(path: str, status: int) -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.answers["/elsewhere"] = issuer.answers[path]

        async def redirect(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": f"{issuer.url}/elsewhere"})

        issuer.answers[path] = redirect
        assert await is_unavailable(issuer.keys())
        assert "/elsewhere" not in issuer.asked

    play(scenario)


def test_keys_to_encrypt_with_do_not_sign() -> None:
    async def scenario(issuer: Publisher) -> None:
        [key] = SECOND.key_set["keys"]
        issuer.answers["/keys"]["keys"].append({**key, "use": "enc"})
        keys = issuer.keys()
        assert await is_unknown(keys, "second")
        assert (await keys.find(None)).key_id == "first"
        issuer.answers["/keys"]["keys"][:] = [{**key, "use": "enc"}]
        assert await is_unavailable(issuer.keys(), "second")

    play(scenario)


def test_a_token_without_a_key_id_does_not_choose_among_keys() -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.publish(FIRST, SECOND)
        keys = issuer.keys()
        with pytest.raises(jwt.InvalidKeyError):
            await keys.find(None)
        assert (await keys.find("second")).key_id == "second"

    play(scenario)


def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        issuer.publish(FIRST, SECOND)
        issuer.clock.now += PAUSE_AFTER_SUCCESS
        assert (await keys.find("second")).key_id == "second"
        assert issuer.fetches() == 2

    play(scenario)


def test_unknown_key_ids_cause_at_most_one_fetch_in_each_pause() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        for number in range(50):
            assert await is_unknown(keys, f"made-up-{number}")
        assert issuer.fetches() == 1
        issuer.clock.now += PAUSE_AFTER_SUCCESS
        for number in range(50):
            assert await is_unknown(keys, f"made-up-{number}")
        assert issuer.fetches() == 2
        assert (await keys.find("first")).key_id == "first"

    play(scenario)


def test_a_key_that_was_withdrawn_ends_with_the_next_fetch() -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.publish(FIRST, SECOND)
        keys = issuer.keys()
        await keys.find("second")
        issuer.publish(FIRST)
        issuer.clock.now += FRESH
        await keys.find("second")  # it is stale, but a fetch begins
        await background_fetch(keys)
        assert await is_unknown(keys, "second")

    play(scenario)


def test_old_keys_serve_while_new_ones_are_fetched() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        issuer.clock.now += FRESH
        issuer.gate = asyncio.Event()
        async with asyncio.timeout(1):
            assert (await keys.find("first")).key_id == "first"
        issuer.gate.set()
        await background_fetch(keys)
        assert issuer.fetches() == 2

    play(scenario)


def test_keys_outlive_an_issuer_that_is_away_but_not_for_ever() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        issuer.answers["/keys"] = issuer.answers[DISCOVERY] = 503
        start = issuer.clock.now
        for _ in range(3):
            issuer.clock.now += FRESH
            assert (await keys.find("first")).key_id == "first"
            await background_fetch(keys)
        issuer.clock.now = start + FRESH + STALE.total_seconds() - 1
        assert (await keys.find("first")).key_id == "first"
        await background_fetch(keys)
        issuer.clock.now += 1
        assert await is_unavailable(keys)
        issuer.publish(FIRST)
        issuer.clock.now += PAUSE_AFTER_FAILURE
        assert (await keys.find("first")).key_id == "first"

    play(scenario)


def test_an_unknown_key_while_the_issuer_is_away_is_not_the_callers_fault() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        issuer.answers["/keys"] = 503
        issuer.clock.now += PAUSE_AFTER_SUCCESS
        assert await is_unavailable(keys, "second")
        assert (await keys.find("first")).key_id == "first"

    play(scenario)


def test_after_a_failure_callers_get_their_answer_at_once() -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.answers["/keys"] = 503
        keys = issuer.keys()
        assert await is_unavailable(keys)
        issuer.gate = asyncio.Event()  # a request would hang
        async with asyncio.timeout(1):
            for _ in range(50):
                assert await is_unavailable(keys)
        assert issuer.fetches() == 1
        issuer.gate.set()
        issuer.publish(FIRST)
        issuer.clock.now += PAUSE_AFTER_FAILURE
        assert (await keys.find("first")).key_id == "first"
        assert issuer.fetches() == 2

    play(scenario)


def test_many_callers_share_one_fetch() -> None:
    async def scenario(issuer: Publisher) -> None:
        issuer.gate = asyncio.Event()
        keys = issuer.keys()
        callers = [asyncio.create_task(keys.find("first")) for _ in range(100)]
        while not issuer.asked:
            await asyncio.sleep(0.01)
        callers[0].cancel()  # a caller who hangs up does not take the others' fetch away
        issuer.gate.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert {key.key_id for key in found[1:] if isinstance(key, jwt.PyJWK)} == {"first"}
        assert len(found[1:]) == 99
        assert issuer.asked == [DISCOVERY, "/keys"]

    play(scenario)


def test_an_issuer_may_move_its_keys() -> None:
    async def scenario(issuer: Publisher) -> None:
        keys = issuer.keys()
        await keys.find("first")
        issuer.publish(SECOND)
        issuer.answers[DISCOVERY]["jwks_uri"] = f"{issuer.url}/moved"
        issuer.answers["/moved"] = issuer.answers.pop("/keys")
        issuer.clock.now += PAUSE_AFTER_SUCCESS
        assert await is_unavailable(keys, "second"), "the old address is gone"
        issuer.clock.now += PAUSE_AFTER_FAILURE
        assert (await keys.find("second")).key_id == "second"

    play(scenario)


def test_keys_in_a_file_are_read_again_when_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "keys.json"
        file.write_text(json.dumps(FIRST.key_set))
        keys = key_set_of(IssuerSettings(issuer="https://issuer.example", jwks_file=file))
        assert isinstance(keys, FileKeys)
        assert (await keys.find("first")).key_id == "first"
        file.write_text("{")
        os.utime(file, ns=(1, 1))
        with pytest.raises(KeySetUnavailable):
            await keys.find("first")
        file.write_text(json.dumps(SECOND.key_set))
        os.utime(file, ns=(2, 2))
        assert (await keys.find("second")).key_id == "second"
        with pytest.raises(jwt.InvalidKeyError):
            await keys.find("first")
        file.unlink()
        with pytest.raises(KeySetUnavailable):
            await keys.find("second")

    asyncio.run(scenario())
