"""The files through which other processes find a running stack."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def file_uri(path: Path) -> str:
    """Hadoop and Moraine take the path as it is: an encoded space would be a percent sign."""
    return f"file://{path}"


def render_settings(own: Mapping[str, Any], beneath: Path | None = None) -> str:
    """The stack's `moraine.toml`: what it knows about itself, over the user's own file."""
    given = tomllib.loads(beneath.read_text()) if beneath and beneath.exists() else {}
    header = "# Written by `moraine up`, which writes it anew each time. No secrets in here.\n"
    return header + "".join(f"{line}\n" for line in _lines(_merged(given, own)))


def render_environment(variables: Mapping[str, str]) -> str:
    """To be read by a shell: `set -a; . .moraine/env`."""
    return "".join(f"{k}={shlex.quote(v)}\n" for k, v in sorted(variables.items()))


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping):
            merged[key] = _merged(under.get(key, {}), value)
        else:
            merged[key] = value
    return merged


def _lines(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys with JSON values, which are TOML for all that settings hold."""
    for key, value in values.items():
        bare = _BARE_KEY.fullmatch(key)
        name = prefix + (key if bare else json.dumps(key, ensure_ascii=False))
        if isinstance(value, Mapping):
            yield from _lines(value, f"{name}.")
        else:
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
