"""Packages import only what lies below them, and no two of them import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import moraine
from support.sources import nodes

ROOT = Path(moraine.__path__[0])

# From the ground up. A package may import those of lower layers, and those to its left.
LAYERS = (
    ("errors", "secret_names", "log", "failpoints", "threads", "words", "settings", "tls"),
    ("ledger", "access", "http", "iceberg", "spark"),
    ("storage", "catalog", "orchestration", "client"),
    ("idempotency", "tasks"),
    ("neighbours", "drops", "operations"),
    ("gateway", "ingest"),
    ("app",),
    ("display", "local", "cli"),
)
RANKS = {
    package: rank for rank, package in enumerate(package for layer in LAYERS for package in layer)
}
NO_PART_OF_IT = {"migrations", ""}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(ROOT.rglob("*.py")):
        yield ".".join(("moraine", *file.relative_to(ROOT).with_suffix("").parts)), file


def imports_of(file: Path) -> Iterator[str]:
    """Every module of Moraine's that a file imports, also inside functions and for types only."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "moraine":
                yield from (f"moraine.{alias.name}" for alias in node.names)
            elif node.module.startswith("moraine."):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("moraine."))


def test_layers_have_every_package() -> None:
    assert {package_of(name) for name, _ in modules()} - {"__init__"} - NO_PART_OF_IT == set(RANKS)


@pytest.mark.parametrize("package", RANKS)
def test_layers_import_downwards_only(package: str) -> None:
    upwards = [
        f"{name} imports {imported}"
        for name, file in modules()
        if package_of(name) == package
        for imported in imports_of(file)
        if package_of(imported) not in NO_PART_OF_IT
        and RANKS[package_of(imported)] > RANKS[package]
    ]
    assert upwards == []
