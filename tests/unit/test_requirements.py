"""What the package imports is declared: it runs where only requirements.txt is installed."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from support.sources import nodes

ROOT = Path(__file__).parents[2]
FOLDERS = ("include", "dags", "plugins", "spark_apps", "docker")
OWN = {"moraine"}
# Packages that several distributions share, or that come with another one by its own pin.
SHARED = {
    "airflow": "apache-airflow",
    "google": "googleapis-common-protos",
    "opentelemetry": "opentelemetry-proto",
    "psycopg_pool": "psycopg",
    "pydantic_core": "pydantic",
}


def test_requirements_declare_every_import() -> None:
    declared = declared_names((ROOT / "requirements.txt").read_text())
    providers = distributions_of_packages()
    missing = {}
    for package, file in sorted(imported_packages()):
        named = SHARED.get(package, " ".join(providers.get(package, ["?"]))).split()
        if not declared & set(map(canonical, named)):
            missing[package] = f"{file}: {' or '.join(named)}"
    assert missing == {}


def test_requirements_declare_nothing_twice() -> None:
    for file in ("requirements.txt", "requirements-dev.txt"):
        names = [canonical(name) for name in requirement_names((ROOT / file).read_text())]
        assert sorted(names) == sorted(set(names)), file
    own, dev = (
        declared_names((ROOT / file).read_text())
        for file in ("requirements.txt", "requirements-dev.txt")
    )
    assert own & dev == set()


def distributions_of_packages() -> dict[str, set[str]]:
    """As `packages_distributions`, which parses every path that is installed, for seconds."""
    found: dict[str, set[str]] = defaultdict(set)
    for distribution in distributions():
        record = distribution.read_text("RECORD") or ""
        for package in set(re.findall(r"^[^/.,]+", record, re.M)):
            found[package].add(distribution.name)
    return found


def imported_packages() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in nodes(path):
                for name in names_in(node):
                    package = name.partition(".")[0]
                    if package not in sys.stdlib_module_names | OWN:
                        yield package, str(path.relative_to(ROOT))


def names_in(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [str(node.module)]
    return []


def declared_names(text: str) -> set[str]:
    return set(map(canonical, requirement_names(text)))


def requirement_names(text: str) -> list[str]:
    return re.findall(r"^([A-Za-z][\w.-]*)", text, re.M)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
