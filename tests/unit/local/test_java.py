from __future__ import annotations

from pathlib import Path

import pytest

from moraine.local import java
from moraine.local.part import StackError


def make_jdk(home: Path, version: str, *, compiler: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    for program in ("java", "javac") if compiler else ("java",):
        (home / "bin" / program).write_text("#!/bin/sh\nexit 1\n")
        (home / "bin" / program).chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def _no_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_USUAL_PLACES", ())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('JAVA_VERSION="21.0.2"', 21),
        ("Error: could not find java", None),
    ],
)
def test_java_versions_old_and_new_are_understood(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def test_java_home_is_respected(tmp_path: Path) -> None:
    mine = make_jdk(tmp_path / "mine", "17.0.1")
    make_jdk(tmp_path / "other", "17.0.2")
    environ = {"JAVA_HOME": str(mine), "PATH": str(tmp_path / "other" / "bin")}
    assert java.find_java(environ).home == mine


def test_java_home_that_is_wrong_is_an_error_even_with_a_right_java_on_the_path(
    tmp_path: Path,
) -> None:
    wrong = make_jdk(tmp_path / "wrong", "25")
    make_jdk(tmp_path / "right", "17")
    environ = {"JAVA_HOME": str(wrong), "PATH": str(tmp_path / "right" / "bin")}
    with pytest.raises(StackError, match=r"JAVA_HOME names Java 25.*install a JDK 17"):
        java.find_java(environ)


def test_java_home_that_is_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="where there is no bin/java"):
        java.find_java({"JAVA_HOME": str(tmp_path)})


def test_java_of_another_version_on_the_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_jdk(tmp_path / "path", "25")
    right = make_jdk(tmp_path / "jvm" / "jdk-17", "17.0.15")
    monkeypatch.setattr(java, "_USUAL_PLACES", ((str(tmp_path / "jvm"), "*"),))
    assert java.find_java({"PATH": str(tmp_path / "path" / "bin")}).home == right


def test_java_jdk_is_preferred_to_a_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_jdk(tmp_path / "jvm" / "a-jre-17", "17", compiler=False)
    jdk = make_jdk(tmp_path / "jvm" / "b-jdk-17", "17")
    monkeypatch.setattr(java, "_USUAL_PLACES", ((str(tmp_path / "jvm"), "*"),))
    assert java.find_java({"PATH": ""}).home == jdk


def test_java_runtime_without_compiler_says_what_to_install(tmp_path: Path) -> None:
    home = make_jdk(tmp_path / "jre", "17", compiler=False)
    found = java.find_java({"JAVA_HOME": str(home)})
    with pytest.raises(StackError, match=r"without the compiler: install a JDK 17"):
        _ = found.javac


def test_java_search_distinguishes_no_java_from_other_versions_only(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="found none"):
        java.find_java({"PATH": str(tmp_path)})
    make_jdk(tmp_path / "old", "11")
    with pytest.raises(StackError, match="found only Java 11"):
        java.find_java({"PATH": str(tmp_path / "old" / "bin")})
