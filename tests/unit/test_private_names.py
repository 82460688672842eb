"""Private names of other libraries that the code uses: listed, with the version they work in.

Such a name may change in any release. To raise a version, run the tests of the parts that use it,
then write the new version here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import distribution
from pathlib import Path

import pytest

import moraine
from support.sources import nodes

ROOT = Path(__file__).parents[2]
FOLDERS = ("include/moraine", "dags", "plugins", "spark_apps")
# Documented, though they begin with an underscore: of named tuples, and librdkafka's error codes.
PUBLIC = {"_asdict", "_fields", "_replace", "_AUTHENTICATION", "_SSL"}
ACCESSORS = {"delattr", "getattr", "hasattr", "setattr"}


@dataclass(frozen=True)
class Library:
    version: str
    names: frozenset[str]


USED = {
    "aiohttp": Library("3.14.5", frozenset({"_retry_connection"})),
    "confluent-kafka": Library("2.16.1", frozenset({"_listoffsets"})),
    "pyiceberg": Library(
        "0.12.0",
        frozenset(
            {
                "_config_headers",
                "_create_session",
                "_dataframe_to_data_files",
                "_delete_old_metadata",
                "_fetch_config",
                "_load_file_io",
                "_refresh_token",
                "_resolve_storage_credentials",
                "_response_to_table",
                "_session",
            }
        ),
    ),
    "requests": Library("2.34.2", frozenset({"_body_position", "_content", "_content_consumed"})),
    "starlette": Library("1.10.0", frozenset({"_utils"})),
}


@dataclass(frozen=True)
class Source:
    nodes: tuple[ast.AST, ...]

    @cached_property
    def own_names(self) -> set[str]:
        """What the file defines: functions, classes, variables and attributes."""
        return set(self._defined())

    def _defined(self) -> Iterator[str]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                if isinstance(node, ast.Name):
                    yield node.id
                elif isinstance(node, ast.Attribute) and is_own_object(node.value):
                    yield node.attr


@cache
def sources() -> list[Source]:
    return [
        Source(nodes(path)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_foreign(module: str) -> bool:
    package = module.split(".")[0]
    return package not in {"moraine", "None"} and package not in sys.stdlib_module_names


def is_own_object(node: ast.expr) -> bool:
    """`self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported(source: Source) -> Iterator[str]:
    for node in source.nodes:
        paths = []
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        for path in paths:
            if is_foreign(path):
                yield from path.split(".")[1:]


def read(source: Source, inherited: set[str]) -> Iterator[str]:
    """Attributes of objects that this file does not define; `inherited` is known to all."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute):
            own = inherited if is_own_object(node.value) else source.own_names
            if node.attr not in own:
                yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ACCESSORS:
            yield from (str(at.value) for at in node.args[1:2] if isinstance(at, ast.Constant))


def overridden() -> Iterator[str]:
    """Methods that replace one of another library's class."""
    for module in modules():
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ != module.__name__:
                continue
            foreign = [base for base in cls.__mro__ if is_foreign(base.__module__)]
            for name, member in vars(cls).items():
                if inspect.isroutine(member) or isinstance(member, staticmethod | property):
                    yield from (name for base in foreign if name in vars(base))


def modules() -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            importlib.import_module(found.name)
            for found in pkgutil.walk_packages(moraine.__path__, "moraine.")
            if "migrations" not in found.name
        ]


def test_private_names_in_use_are_all_listed() -> None:
    everywhere = set().union(*(source.own_names for source in sources()))
    found = set(overridden())
    for source in sources():
        found |= {*imported(source), *read(source, everywhere)}
    listed = set().union(*(library.names for library in USED.values()))
    assert set(filter(is_private, found)) - PUBLIC == listed


@pytest.mark.parametrize("name", USED)
def test_private_names_were_tried_with_the_installed_version(name: str) -> None:
    assert distribution(name).version == USED[name].version


@pytest.mark.parametrize("name", USED)
def test_private_names_exist_in_the_library(name: str) -> None:
    files = [file for file in distribution(name).files or () if file.suffix == ".py"]
    words = {
        word
        for file in files
        for word in re.findall(r"\b_\w+", f"{file} {file.locate().read_text(encoding='utf-8')}")
    }
    assert USED[name].names - words == set()
