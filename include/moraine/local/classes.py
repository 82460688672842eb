"""Our two Java classes, compiled once per home: see the comments in their sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from moraine.local.errors import StackError
from moraine.local.jars import Jars
from moraine.local.java import Java
from moraine.local.part import Event, Report

_HERE = Path(__file__).parent
_SOURCES = (_HERE / "LoopbackCatalog.java", _HERE / "PlainLocalFileSystem.java")
_CORE_SITE = """\
<configuration>
  <property><name>fs.file.impl</name><value>moraine.PlainLocalFileSystem</value></property>
</configuration>
"""


@dataclass(frozen=True)
class Classes:
    home: Path
    jars: Jars

    @property
    def folder(self) -> Path:
        """To be put first on a class path: it also configures Hadoop."""
        content = b"".join(source.read_bytes() for source in _SOURCES) + _CORE_SITE.encode()
        return self.home / "classes" / hashlib.sha256(content).hexdigest()[:12]

    def compile(self, java: Java, report: Report) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the catalog and Spark are prepared side by side
            if not self.folder.exists():
                report(Event("catalog", "compiling its launcher"))
                self._compile(java)

    def _compile(self, java: Java) -> None:
        draft = self.folder.with_suffix(".partial")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        class_path = os.pathsep.join(str(path) for path in self.jars.class_path("catalog"))
        done = subprocess.run(
            [java.javac, "-proc:none", "-nowarn", "-cp", class_path, "-d", draft, *_SOURCES],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StackError(f"The catalog's launcher does not compile: {done.stderr.strip()}")
        (draft / "core-site.xml").write_text(_CORE_SITE)
        draft.rename(self.folder)
