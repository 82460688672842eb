"""Answers of issuers and policy agents."""

from __future__ import annotations

import aiohttp


async def read_answer(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The whole body. Raises ValueError for an error, a redirect, or more than `max_bytes`."""
    if response.status != 200:
        raise ValueError(f"answered {response.status}")
    body = b""
    while len(body) <= max_bytes and (more := await response.content.read(max_bytes + 1)):
        body += more
    if len(body) > max_bytes:
        raise ValueError("too large")
    return body
