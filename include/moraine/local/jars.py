"""The jars of Spark and the catalogs, fetched once with Ivy and shared between clones; and two
Java classes of our own.

`ivy.xml` says which jars are wanted, `jars.sha256` has their checksums. A jar gets its name in the
cache only after its checksum was verified, so an interrupted download leaves no damaged jar.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from moraine.local.java import Java
from moraine.local.part import Event, Report, StackError, locked, run_tool
from moraine.words import counted

STACK = ("spark", "catalog")
"""The configurations of `ivy.xml` that the stack needs; the others are fetched on demand."""

_HERE = Path(__file__).parent
_SOURCES = (_HERE / "LoopbackCatalog.java", _HERE / "PlainLocalFileSystem.java")
_CORE_SITE = """\
<configuration>
  <property><name>fs.file.impl</name><value>moraine.PlainLocalFileSystem</value></property>
</configuration>
"""
_PATTERN = "[conf]/[artifact]-[revision](-[classifier]).[ext]"
_TROUBLE = ("unresolved", "not found", "failed", "exception", "error", "warn")


@dataclass(frozen=True)
class Jars:
    """The files of one cache folder, by configuration of `ivy.xml`."""

    cache: Path
    checksums: dict[str, str]
    """SHA-256 by path below the cache, as in `jars.sha256`."""

    @classmethod
    def pinned(cls, cache: Path | None) -> Jars:
        return cls(cache or default_cache(), read_checksums(_HERE / "jars.sha256"))

    def class_path(self, configuration: str) -> list[Path]:
        """Each jar by name: the cache may hold other versions too."""
        return [self.cache / name for name in self._names({configuration})]

    def fetch(
        self,
        java: Java,
        report: Report,
        settings: Path | None = None,
        configurations: Collection[str] = STACK,
    ) -> None:
        """Download the jars of these configurations that are missing or have a wrong checksum."""
        if not self._wrong(configurations):
            return
        with locked(self.cache):
            missing = self._wrong(configurations)  # another process may have fetched them
            if missing:
                self._download(missing, java, report, settings)

    def _names(self, configurations: Collection[str]) -> list[str]:
        return [name for name in self.checksums if _configuration(name) in configurations]

    def _wrong(self, configurations: Collection[str]) -> list[str]:
        names = self._names(configurations)
        return [name for name in names if sha256(self.cache / name) != self.checksums[name]]

    def _download(
        self, missing: list[str], java: Java, report: Report, settings: Path | None
    ) -> None:
        incomplete = sorted({_configuration(name) for name in missing})
        steps = 2 * len(self._names(incomplete))  # each is looked up, then downloaded
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.cache) as draft:

            def show(done: int) -> None:
                report(Event("jars", "fetching", min(done, steps), steps))

            _run_ivy(java, Path(draft), incomplete, show, settings)
            for name in missing:
                self._adopt(Path(draft) / name, name)
        report(Event("jars", f"{counted(len(missing), 'jar')} fetched and checked", ready=True))

    def _adopt(self, jar: Path, name: str) -> None:
        found = sha256(jar)
        if found is None:
            raise StackError(f"The repository has no {name}: see ivy.xml and jars.sha256.")
        if found != self.checksums[name]:
            raise StackError(
                f"{name} has the checksum {found}, but {self.checksums[name]} is pinned in "
                "jars.sha256: do not use this repository, or update the list if you trust it."
            )
        target = self.cache / name
        target.parent.mkdir(exist_ok=True)
        jar.replace(target)


@dataclass(frozen=True)
class Classes:
    """Our two Java classes, compiled once per home: see the comments in their sources."""

    home: Path
    jars: Jars

    @property
    def folder(self) -> Path:
        """Goes first on a class path: it also configures Hadoop."""
        content = b"".join(source.read_bytes() for source in _SOURCES) + _CORE_SITE.encode()
        return self.home / "classes" / hashlib.sha256(content).hexdigest()[:12]

    def compile(self, java: Java, report: Report) -> None:
        with locked(self.folder.parent):  # the catalog and Spark are prepared side by side
            if not self.folder.exists():
                report(Event("catalog", "compiling its launcher"))
                self._compile(java)

    def _compile(self, java: Java) -> None:
        draft = self.folder.with_suffix(".partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        class_path = os.pathsep.join(str(path) for path in self.jars.class_path("catalog"))
        run_tool(
            [
                java.javac,
                "-J-XX:TieredStopAtLevel=1",  # for two files, half the time
                *("-proc:none", "-nowarn", "-cp", class_path, "-d", draft),
                *_SOURCES,
            ],
            "The catalog's launcher does not compile.",
        )
        (draft / "core-site.xml").write_text(_CORE_SITE)
        draft.rename(self.folder)


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "moraine" / "jars"


def read_checksums(path: Path) -> dict[str, str]:
    """The format of sha256sum: digest, two spaces, name."""
    pairs = (line.split(maxsplit=1) for line in path.read_text().splitlines() if line)
    return {name: digest for digest, name in pairs}


def sha256(path: Path) -> str | None:
    if not path.exists():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _configuration(name: str) -> str:
    return name.partition("/")[0]


def _run_ivy(
    java: Java,
    target: Path,
    configurations: Collection[str],
    show: Callable[[int], None],
    settings: Path | None,
) -> None:
    """Run the Ivy that comes with PySpark. Its own cache is deleted after this download."""
    command: list[str | Path] = [java.java, "-jar", _ivy_jar(), "-ivy", _HERE / "ivy.xml"]
    if settings:
        command += ["-settings", settings.expanduser()]
    command += ["-cache", target / "ivy", "-confs", *configurations]
    command += ["-types", "jar", "bundle", "tar.gz", "-retrieve", f"{target}/{_PATTERN}"]
    show(0)
    done, trouble = 0, ""
    ivy = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=target
    )
    with ivy:
        assert ivy.stdout is not None
        try:
            for line in ivy.stdout:
                if line.startswith(("\tfound ", "\t[SUCCESSFUL ]")):
                    done += 1
                    show(done)
                elif any(word in line.lower() for word in _TROUBLE):
                    trouble += line
        except BaseException:
            ivy.kill()
            raise
    if ivy.returncode or "UNRESOLVED" in trouble or "FAILED DOWNLOADS" in trouble:
        raise StackError(
            "The jars could not be fetched: check the network, or name your own repository with "
            "stack.ivy-settings.",
            details=trouble.strip()[-1500:],
        )


def _ivy_jar() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise StackError("The package pyspark is missing: run `make setup`.")
    jars = sorted((Path(found.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise StackError("pyspark comes without its jars: remove .venv and run `make setup`.")
    return jars[-1]
