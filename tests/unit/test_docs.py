"""The documentation names what the code has, and nothing that it has not."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from fastapi.routing import APIRoute
from prometheus_client.core import Metric
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

import moraine
from moraine.app.assembly import create_app
from moraine.app.metrics import _Gateway, _Ingest, _Limits, _Tasks
from moraine.errors import MoraineError
from moraine.http import DELEGATION_PATH
from moraine.http import errors as api_errors
from moraine.ingest.model import Backlog
from moraine.operations import OPERATIONS
from moraine.settings import IssuerSettings, RetrySettings, Settings
from moraine.tasks.model import TRANSITIONS, Status

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
BUILT_IN_RETRY = Settings.model_fields["delegation"].annotation().retry["default"]  # type: ignore[misc]


def read(path: str) -> str:
    return (ROOT / path).read_text()


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


# --- Settings -------------------------------------------------------------------------------


EXAMPLES = [
    pytest.param(example, id=f"{page.name}-{number}")
    for page in PAGES
    for number, example in enumerate(
        re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_docs_show_only_valid_settings(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moraine.toml"
    file.write_text(example)
    monkeypatch.setenv("MORAINE_CONFIG", str(file))
    assert Settings() != Settings.model_construct()


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        key = prefix + name.replace("_", "-")
        annotation: Any = field.annotation
        if get_origin(annotation) is dict and issubclass(get_args(annotation)[1], BaseModel):
            if get_args(annotation)[1] is IssuerSettings:  # as those of the first issuer
                yield f"{key}.NAME", field
                continue
            chosen = "TYPE" if get_args(annotation)[1] is RetrySettings else "NAME"
            yield from settings_of(get_args(annotation)[1], f"{key}.{chosen}.")
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from settings_of(annotation, f"{key}.")
        else:
            yield key, field


def default_of(key: str, field: FieldInfo) -> str:
    """As the documentation writes it."""
    value = field.default
    if key.startswith("delegation.retry."):
        value = getattr(BUILT_IN_RETRY, key.rsplit(".", 1)[1].replace("-", "_"))
    if field.is_required():
        return "required"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", {}, []):
        return "none" if value is None else "empty"
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, timedelta):
        return f"`{short(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def short(duration: timedelta) -> str:
    seconds = int(duration.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def documented_settings(page: str) -> dict[str, str]:
    found = (cells for cells in rows(page) if re.fullmatch(r"`[a-zA-Z][\w.-]+`", cells[0]))
    return {cells[0].strip("`"): cells[1] for cells in found}


def test_docs_have_every_setting_with_its_default() -> None:
    expected = {key: default_of(key, field) for key, field in settings_of(Settings)}
    assert documented_settings(read("docs/settings.md")) == expected


def test_readme_shows_only_settings_that_exist() -> None:
    section = read("README.md").split("## Settings")[1].split("\n## ")[0]
    shown = documented_settings(section)
    assert len(shown) > 5
    assert set(shown) - {key for key, _ in settings_of(Settings)} == set()


def log_events() -> set[str]:
    sources = (ROOT / "include/moraine").rglob("*.py")
    return {
        event
        for source in sources
        for event in re.findall(r'log\.\w+\(\s*"([a-z._]+)"', source.read_text())
    }


def test_docs_name_only_settings_that_exist() -> None:
    known = {key for key, _ in settings_of(Settings)} | log_events()
    sections = {
        key.rsplit(".", count)[0] for key in known for count in range(1, key.count(".") + 1)
    }
    roots = "|".join(Settings.model_fields)
    for page in PAGES:
        for key in re.findall(rf"`((?:{roots})\.[\w.-]+[\w])`", page.read_text()):
            general = re.sub(r"^(delegation\.retry)\.[A-Z_]+", r"\1.TYPE", key)
            assert {key, general} & (known | sections) or (ROOT / key).exists(), f"{page}: {key}"


# --- Errors ---------------------------------------------------------------------------------


def all_errors(cls: type[MoraineError] = MoraineError) -> Iterator[type[MoraineError]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from all_errors(subclass)


def import_everything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's and PySpark's own, at their import
        for module in pkgutil.walk_packages(moraine.__path__, "moraine."):
            if not module.name.startswith("moraine.migrations."):  # those run when imported
                importlib.import_module(module.name)


def test_docs_have_every_error_code_with_its_status() -> None:
    import_everything()
    expected = {
        error.code: str(error.http_status)
        for error in all_errors()
        # They answer in forms of their own.
        if not error.__module__.startswith(("moraine.gateway", "moraine.iceberg", "moraine.ingest"))
    }
    expected |= {code: str(status) for status, code in api_errors._CODES.items()}
    expected["HTTP_ERROR"] = "any other"
    text = read("docs/api.md").split("\n## Errors")[1]
    documented = {
        cells[0].strip("`"): cells[1]
        for cells in rows(text)
        if re.fullmatch(r"`[A-Z_]+`", cells[0])
    }
    assert documented == expected


def test_docs_have_every_error_code_of_ingest_with_its_status() -> None:
    import_everything()
    expected = {
        error.code: str(error.http_status)
        for error in all_errors()
        if error.__module__.startswith("moraine.ingest") and error.code.islower()
    }
    text = read("docs/ingest.md").split("\n### Errors")[1].split("\n## ")[0]
    documented = {
        cells[0].strip("`"): cells[1]
        for cells in rows(text)
        if re.fullmatch(r"`[a-z_]+`", cells[0])
    }
    assert documented == expected


# --- Routes and states ----------------------------------------------------------------------


@cache
def routes() -> set[tuple[str, str]]:
    return {
        (method, DELEGATION_PATH + route.path)
        for route in create_app().routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }


def test_docs_have_every_route() -> None:
    table = read("docs/api.md").split("## Routes")[1].split("###")[0]
    documented = set(re.findall(r"\| (GET|POST) `(\S+)`", table))
    assert documented == routes()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_name_only_paths_that_are_routes(page: Path) -> None:
    patterns = [re.sub(r"\{\w+\}", "[^/]+", path) for _, path in routes()]
    base = {DELEGATION_PATH, f"{DELEGATION_PATH}/v1"}
    text = page.read_text()
    for path in re.findall(rf"{DELEGATION_PATH}[\w/{{}}.-]*", text):
        assert path in base or any(re.fullmatch(p, path) for p in patterns), path
    # The examples put the base in a variable: $api is with the version in README, without it here.
    for path in re.findall(r"\$api(/[\w/$-]+)", text):
        version = "" if path.startswith("/v1") else "/v1"
        whole = f"{DELEGATION_PATH}{version}{path}"
        assert any(re.fullmatch(p, whole) for p in patterns), path


def test_docs_have_every_state_by_both_names() -> None:
    table = read("docs/api.md").split("## States")[1].split("\n## ")[0]
    documented = {tuple(re.findall(r"`([A-Z_]+)`", " ".join(cells[:2]))) for cells in rows(table)}
    assert documented - {()} == {(status.wire, status.value) for status in Status}


def test_docs_have_every_transition() -> None:
    table = read("docs/architecture.md").split("## Ledger")[1].split("A trigger")[0]
    documented = {}
    for cells in rows(table):
        if cells[0] in Status.__members__:
            before = Status(cells[0])
            after = {Status(name) for name in re.findall(r"[A-Z]{2,}(?:_[A-Z]+)*", cells[1])}
            documented[before] = after | ({before} if "itself" in cells[1] else set())
    assert documented == {before: set(after) for before, after in TRANSITIONS.items()}


# --- The rest -------------------------------------------------------------------------------


def test_docs_have_every_metric() -> None:
    row = {
        "task_type": "TABLE_PURGE",
        "status": "SUCCESS",
        **dict.fromkeys(("tasks", "seconds", "attempts", "lease_losses"), 1),
    }
    families: list[Metric] = [
        *_Tasks([row], OPERATIONS.figures, {}, 0.0).collect(),
        *_Gateway({}, 0).collect(),
        *_Limits({}).collect(),
        *_Ingest([], [], [], Backlog(0, 0, 0.0, 0)).collect(),
    ]
    names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    table = read("docs/operations.md").split("## Watch")[1].split("## Back up")[0]
    documented = {
        found[1] for cells in rows(table) if (found := re.match(r"`(moraine_\w+)`", cells[0]))
    }
    assert documented == names


def test_docs_name_only_log_events_that_exist() -> None:
    section = read("docs/operations.md").split("Log events worth a search")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z._]+)`", section))
    assert named
    assert named - log_events() == set()


def test_docs_have_a_page_for_every_dag() -> None:
    assert {page.stem for page in (DOCS / "dags").glob("*.md")} == {
        dag.stem for dag in (ROOT / "dags").glob("*.py")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_docs_index_lists_every_page() -> None:
    linked = {
        (DOCS / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", read("docs/README.md"))
    }
    assert {page for page in DOCS.rglob("*.md") if page.name != "README.md"} <= linked


def test_docs_name_only_make_targets_and_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.M))
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M):
            assert target in targets, f"{page}: make {target}"
