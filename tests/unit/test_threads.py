"""Calls in threads."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from moraine.errors import MoraineError, ValidationFailed
from moraine.threads import Threads


def in_thread(call: Any, *args: Any) -> Any:
    async def run() -> Any:
        return await Threads(1)(call, *args)

    return asyncio.run(run())


def fail(kind: type[BaseException]) -> None:
    raise kind("a secret")


def test_thread_call_returns_or_raises_what_the_function_does() -> None:
    assert in_thread(len, "four") == 4
    with pytest.raises(ValidationFailed):
        in_thread(fail, ValidationFailed)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_thread_call_turns_what_would_end_the_event_loop_into_an_error(
    kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MoraineError) as raised:
        in_thread(fail, kind)
    assert (raised.value.code, raised.value.http_status) == ("INTERNAL_ERROR", 500)
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__
    said = "".join(capfd.readouterr())
    assert kind.__name__ in said
    assert "secret" not in said


def test_thread_call_that_exits_does_not_end_the_process() -> None:
    with pytest.raises(MoraineError):
        in_thread(sys.exit, {"s3.secret-access-key": "a secret"})
