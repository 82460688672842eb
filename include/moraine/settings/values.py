"""The types that settings consist of: sections, durations, addresses and properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from moraine.settings.properties import as_texts

_SHORT_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_duration(value: Any) -> Any:
    """`30s`, `1h30m` or `7d`; ISO-8601 (`PT30M`) is left to pydantic."""
    short = value.strip() if isinstance(value, str) else ""
    if short and (match := _SHORT_DURATION.fullmatch(short)):
        days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration), Field(ge=timedelta(0))]


class Section(BaseModel):
    # Error messages do not repeat the value: it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _without_user(uri: str) -> str:
    """Addresses appear in errors and logs, so they must not contain a secret."""
    if "@" in urlsplit(uri).netloc:
        raise ValueError("an address must not contain a user or password; use the auth section")
    return uri


_FOLDER = re.compile(r"(?:file:)?/+[^/].*|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://[^/]+/+[^/].*")


def _a_folder(location: str) -> str:
    """A whole bucket or disk is refused: that is too much to allow deletes in."""
    if not _FOLDER.fullmatch(location):
        raise ValueError("must be a folder in a bucket or on a disk, such as s3://bucket/a")
    return location


Address = Annotated[str, AfterValidator(_without_user)]
Folder = Annotated[str, AfterValidator(_a_folder)]
Properties = Annotated[dict[str, SecretStr], BeforeValidator(as_texts)]


def revealed(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    """Contains secrets: do not log."""
    return {name: value.get_secret_value() for name, value in properties.items()}
