"""The code as several tests of it read it: parsed once, by whichever test comes first.

for node in nodes(path):
    if isinstance(node, ast.ClassDef): ...
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that is in a file, parents before their children."""
    return tuple(ast.walk(ast.parse(path.read_text())))
