"""Where only requirements.txt is installed, as in the image, everything can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Alembic alone can import its environment.
NOT_IMPORTED = {"moraine.migrations.env"}
_IMPORT = """
import importlib, importlib.util, sys, traceback

failed = []
for name in sys.argv[1:]:
    try:
        if name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("module_of_a_file", name)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            importlib.import_module(name)
    except BaseException:
        failed.append(name + ": " + traceback.format_exc().strip().splitlines()[-1])
sys.exit("\\n".join(failed) or None)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the requirements, at the versions of the lock file."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    run("uv", "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    constraints = ("--constraint", ROOT / "requirements.lock")
    run(
        *("uv", "pip", "install", "--quiet", "--python", python, *constraints),
        *("--requirement", ROOT / "requirements.txt"),
    )
    return python


@pytest.mark.timeout(900)  # what is not in uv's cache is fetched
def test_installation_of_the_requirements_alone_imports_every_module(
    python: Path, tmp_path: Path
) -> None:
    modules = set(map(module_name, (ROOT / "include").rglob("*.py")))
    folders = (ROOT / folder for folder in ("dags", "plugins", "spark_apps"))
    files = [str(file) for folder in folders for file in sorted(folder.glob("*.py"))]
    assert len(modules) > 150
    assert len(files) > 9
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "include"),
    }
    run(python, "-c", _IMPORT, *sorted(modules - NOT_IMPORTED), *files, env=environment)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "include").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run(*argv: str | Path, env: dict[str, str] | None = None) -> None:
    tools = str(Path(sys.executable).parent)
    given = env or {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(argv, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
