"""The Java that Spark and the catalog run on: version 17, found or asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moraine.local.part import StackError

VERSION = 17  # Spark 4.1 fails on Java 25, and is tested by Iceberg on 17

_USUAL_PLACES = (
    ("/usr/lib/jvm", "*"),
    ("/usr/java", "*"),
    ("/opt", "*j*dk*"),
    ("/Library/Java/JavaVirtualMachines", "*/Contents/Home"),
    ("~/.sdkman/candidates/java", "*"),
    ("~/.jdks", "*"),
)
_HOW = (
    "install a JDK 17 (for example the package openjdk-17-jdk-headless) or point JAVA_HOME to one"
)


@dataclass(frozen=True)
class Java:
    home: Path

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def javac(self) -> Path:
        """The compiler, which a runtime environment (JRE) lacks."""
        path = self.home / "bin" / "javac"
        if not path.exists():
            raise StackError(f"{self.home} is a Java runtime without the compiler: {_HOW}.")
        return path


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """JAVA_HOME if it is set, and then it must be right; else PATH and the usual folders."""
    if given := environ.get("JAVA_HOME"):
        home = Path(given)
        if not (home / "bin" / "java").exists():
            raise StackError(f"JAVA_HOME names {given}, where there is no bin/java: {_HOW}.")
        if (version := version_of(home)) != VERSION:
            found = version or "no Java that runs"
            raise StackError(f"JAVA_HOME names Java {found}, but Moraine needs Java 17: {_HOW}.")
        return Java(home)
    return _choose(_candidates(environ))


def version_of(home: Path) -> int | None:
    """The feature version, from the `release` file of a JDK or else from Java itself."""
    release = home / "release"
    if release.exists():
        for line in release.read_text(errors="replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                return parse_version(line)
    try:
        told = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(told.stderr)


def parse_version(text: str) -> int | None:
    """17 from `openjdk version "17.0.15"`, 8 from `java version "1.8.0_402"`."""
    match = re.search(r'"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _choose(homes: Iterable[Path]) -> Java:
    others: dict[Path, int | None] = {}
    runtime = None
    for home in homes:
        version = version_of(home)
        if version == VERSION and (home / "bin" / "javac").exists():
            return Java(home)
        if version == VERSION:
            runtime = runtime or Java(home)
        others[home] = version
    if runtime:
        return runtime
    if others:
        found = ", ".join(f"{version} in {home}" for home, version in others.items() if version)
        raise StackError(f"Moraine needs Java 17 and found only Java {found}: {_HOW}.")
    raise StackError(f"Moraine needs Java 17 and found none: {_HOW}.")


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    seen: set[Path] = set()
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    found = [Path(on_path).resolve().parents[1]] if on_path else []
    for folder, pattern in _USUAL_PLACES:
        found += sorted(Path(folder).expanduser().glob(pattern))
    for home in found:
        if (home / "bin" / "java").exists() and home.resolve() not in seen:
            seen.add(home.resolve())
            yield home
