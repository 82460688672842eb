"""Where a catalog is: asked once, kept, and asked again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from moraine.errors import CatalogRefused, CatalogUnavailable, MoraineError
from moraine.gateway.discovery import RECENT, ConfigUnknown, DiscoveredPaths
from moraine.iceberg.paths import CatalogPaths
from moraine.settings import CatalogSettings

FIRST, SECOND = CatalogPaths.of("one", "%1F"), CatalogPaths.of("two", "%2E")
SECRET = "moraines-own-token"


class Scripted(DiscoveredPaths):
    """Answers in turn what it is given."""

    def __init__(self, *answers: CatalogPaths | MoraineError) -> None:
        self.now = 1000.0
        super().__init__("prod", CatalogSettings(uri="http://catalog"), lambda: self.now)
        self.answers = list(answers)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def _ask(self) -> CatalogPaths:
        assert self.may_answer.wait(30)
        answer = self.answers.pop(0)
        if isinstance(answer, MoraineError):
            raise answer
        return answer


def test_it_is_asked_once_an_hour() -> None:
    async def run() -> None:
        known = Scripted(FIRST, SECOND)
        assert [await known.get() for _ in range(3)] == [FIRST] * 3
        known.now += 3599
        assert await known.get() == FIRST
        known.now += 1
        assert await known.get() == SECOND

    asyncio.run(run())


def test_a_doubt_is_settled_now_but_not_with_every_request() -> None:
    async def run() -> None:
        known = Scripted(FIRST, SECOND)
        await known.get()
        assert await known.get(RECENT) == FIRST
        known.now += RECENT
        assert await known.get(RECENT) == SECOND
        assert await known.get() == SECOND

    asyncio.run(run())


def test_all_who_wait_share_one_answer() -> None:
    async def run() -> None:
        known = Scripted(FIRST)
        known.may_answer.clear()
        waiting = [asyncio.create_task(known.get()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        known.may_answer.set()
        assert await asyncio.gather(*waiting[1:]) == [FIRST] * 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CatalogUnavailable(f"It said {SECRET}"), "Ask again later"),
        (CatalogRefused(f"It said {SECRET}"), "catalogs.prod.uri, .warehouse and .auth"),
    ],
)
def test_what_cannot_be_learnt_is_asked_again(error: MoraineError, words: str) -> None:
    async def run() -> None:
        known = Scripted(error, FIRST)
        with pytest.raises(ConfigUnknown, match=words) as unknown:
            await known.get()
        assert SECRET not in str(unknown.value)
        assert unknown.value.http_status == 503
        assert await known.get() == FIRST

    asyncio.run(run())


def test_what_was_learnt_holds_while_the_catalog_is_away() -> None:
    async def run() -> None:
        known = Scripted(FIRST, CatalogUnavailable(), CatalogRefused(), SECOND)
        await known.get()
        known.now += 4000
        assert [await known.get() for _ in range(3)] == [FIRST, FIRST, SECOND]

    asyncio.run(run())
