"""A class name means one thing: no two modules of the package define the same one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import moraine
from support.sources import nodes

ROOT = Path(moraine.__path__[0])


def test_class_names_are_defined_once() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for file in ROOT.rglob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(file.relative_to(ROOT).as_posix())
    repeated = {name: files for name, files in modules.items() if len(files) > 1}
    assert repeated == {}
