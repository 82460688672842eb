"""Reads the settings file, and matches the names in the environment with those in the file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from moraine.secret_names import is_secret_property
from moraine.settings.properties import flatten


def read_file(model: type[BaseModel]) -> dict[str, Any]:
    """The content of `moraine.toml`, or of the file that MORAINE_CONFIG names."""
    path = Path(os.environ.get("MORAINE_CONFIG", "moraine.toml"))
    if not path.exists():
        if "MORAINE_CONFIG" in os.environ:
            raise FileNotFoundError(f"MORAINE_CONFIG names {path}, which does not exist")
        return {}
    return _underscored(model, tomllib.loads(path.read_text()))


def _underscored(model: type[BaseModel], data: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Replace hyphens by the underscores of the model's fields; names that users choose stay.

    Secrets are refused: a settings file is copied, committed and shown.
    """
    result: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        path = f"{above}{key}"
        field = model.model_fields.get(name)
        annotation: Any = field.annotation if field else None
        if annotation is SecretStr and value:
            raise _misplaced(path, name, above)
        if field is None or not isinstance(value, dict):
            result[name if field else key] = value
        elif get_origin(annotation) is not dict:
            result[name] = _underscored(annotation, value, f"{path}.")
        elif get_args(annotation)[1] is SecretStr:
            for secret in (
                key for key, given in flatten(value) if given and is_secret_property(key)
            ):
                raise _misplaced(f'{path}."{secret}"', name, above)
            result[name] = value
        else:
            section = get_args(annotation)[1]
            result[name] = {k: _underscored(section, v, f"{path}.{k}.") for k, v in value.items()}
    return result


def _misplaced(path: str, name: str, above: str) -> ValueError:
    words = [word.replace("-", "_").upper() for word in [*above.split(".")[:-1], name]]
    return ValueError(
        f"{path} is a secret and must not be in the settings file. Give it in the environment "
        f"variable MORAINE_{'__'.join(words)}, or by an Airflow connection; docs/settings.md "
        "has the names."
    )


# Sections whose keys are names that users choose.
_NAMED = (("catalogs",), ("ingest", "filedrop", "prefixes"))


def with_names_of(file: Mapping[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """Spell catalogs and watched folders as the file does: environment variables have neither
    upper case nor hyphens."""
    for path in _NAMED:
        environment = _renamed(path, file, environment)
    return environment


def _renamed(
    path: tuple[str, ...], file: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    section, *below = path
    theirs, given = file.get(section, {}), environment.get(section)
    if not isinstance(given, Mapping) or not isinstance(theirs, Mapping):
        return dict(environment)
    if below:
        return {**environment, section: _renamed(tuple(below), theirs, given)}
    renamed: dict[str, Any] = {}
    for key, value in given.items():
        alike = [name for name in theirs if _folded(name) == _folded(key)]
        name = alike[0] if key not in theirs and len(alike) == 1 else key
        renamed[name] = _merged(renamed.get(name, {}), value)
    return {**environment, section: renamed}


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if nested else value
    return merged
