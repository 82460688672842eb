"""SQL lives in `.sql` files, as named blocks: `-- name: claim` starts one."""

from __future__ import annotations

import re
from importlib.resources import files

_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.M | re.S)


def load_queries(package: str, filename: str) -> dict[str, bytes]:
    text = files(package).joinpath(filename).read_text()
    return {name: body.strip().encode() for name, body in _BLOCK.findall(text)}
