"""What unit tests of several folders need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moraine.settings import Settings, get_settings


@pytest.fixture
def given_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Settings]]:
    """The settings that a file and an environment make."""

    def read(toml: str = "", **environment: str) -> Settings:
        file = tmp_path / "moraine.toml"
        file.write_text(toml)
        monkeypatch.setenv("MORAINE_CONFIG", str(file))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        get_settings.cache_clear()
        return get_settings()

    yield read
    get_settings.cache_clear()
