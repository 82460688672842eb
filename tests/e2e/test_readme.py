"""What a new user copies from README.md works as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.platform import Platform
from support.waiting import wait_for

README = (Path(__file__).parents[2] / "README.md").read_text()
# A line of its own after each block, so that the answers can be told apart.
MARK = "--- end of a block ---"


def blocks(heading: str, language: str) -> list[str]:
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)
    assert found, f"README.md has no {language} under {heading}"
    return list(found)


@pytest.fixture
def clone(platform: Platform, tmp_path: Path) -> Path:
    """A folder with the files of a running stack where `make up` has them."""
    (tmp_path / ".moraine").symlink_to(platform.stack.home)
    return tmp_path


def run(folder: Path, commands: list[str]) -> list[str]:
    """What each of these blocks says, one shell for all of them, as a user has it."""
    script = "".join(f"{block}\necho; echo '{MARK}'\n" for block in commands)
    kept = ("PATH", "HOME")
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=folder,
        env={name: os.environ[name] for name in kept},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(MARK)[:-1]


def values(text: str) -> list[Any]:
    """The JSON objects in an output, one after the other."""
    found, rest = [], text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


def test_readme_examples_work_as_they_stand(clone: Path, platform: Platform) -> None:
    commands = [*blocks("The API by example", "sh"), *blocks("The gateway by example", "sh")]
    # As the text says: it is sent again for as long as it is in progress.
    wait_for(
        lambda: "rows_ingested" in run(clone, commands[:2])[1] or None, "the rows are not written"
    )
    _login, ingested, _request, executed, submitted, steered, gateway = run(clone, commands)
    told, queued, _error = (json.loads(block) for block in blocks("The API by example", "json"))

    (answer,) = values(ingested)
    assert (answer["rows_ingested"], answer["replayed"]) == (2, True), answer

    (answer,) = values(executed)
    assert answer["status"] == told["status"] == "COMPLETED_SUCCESS", answer
    assert answer["message"] == told["message"]
    shown = told["execution_result"].keys() - {"…"}
    assert {name: answer["execution_result"][name] for name in shown} == {
        name: told["execution_result"][name] for name in shown
    }

    (answer,) = values(submitted)
    assert answer.keys() == queued.keys()
    task_id = answer["delegation_task_id"]

    events, _, rest = steered.partition('{"delegation_task_id"')
    assert "event: state" in events
    record, listed, cancelled, retried = values('{"delegation_task_id"' + rest)
    assert (record["delegation_task_id"], record["status"]) == (task_id, "COMPLETED_SUCCESS")
    assert listed["tasks"][0]["delegation_task_id"] == task_id
    assert {cancelled["error_code"], retried["error_code"]} == {"TASK_CONFLICT"}

    config, made = values(gateway)
    assert config["idempotency-key-lifetime"]
    assert made["namespace"] == ["lab"]
    folder = platform.warehouse / "shop" / "events"
    assert [path for path in folder.rglob("*") if path.is_file()] == [], "dropped with its files"
