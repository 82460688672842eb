"""PostgreSQL refuses to run as root. Started by root, it runs as an unprivileged user.

That user cannot enter a clone or a virtual environment in a home folder with mode 0700. Then the
process keeps one capability, to search folders that it may not enter; no folder is opened to other
users. Where even that is not possible (some containers), the caller uses a folder that every user
can enter.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from moraine.local.part import StackError

_USER = "nobody"
_CAPABILITIES = ("dac_read_search", "dac_override")  # the first is the lesser; Docker drops it


def is_root() -> bool:
    return os.geteuid() == 0


def give_to_unprivileged(path: Path) -> None:
    """Hand a file or folder to the user that `unprivileged` runs as."""
    if is_root():
        user = _unprivileged_user()
        os.chown(path, user.pw_uid, user.pw_gid)


def belongs_to_us(path: Path) -> bool:
    """Whether no other user can have put something there."""
    owners = {os.geteuid()} | ({_unprivileged_user().pw_uid} if is_root() else set())
    return path.lstat().st_uid in owners and not path.is_symlink()


def unprivileged(binaries: Path, folder: Path) -> tuple[str, ...] | None:
    """The prefix for PostgreSQL's commands that keeps them from running as root.

    Empty when we are not root; None when no other user can reach both the binaries and the folder.
    """
    if not is_root():
        return ()
    for prefix in _prefixes():
        # pg_config finds itself as initdb and postgres do, which needs more than the right to
        # run them.
        script = 'cd "$1" && "$2"/pg_config --bindir'
        reaches = subprocess.run(
            [*prefix, "sh", "-c", script, "sh", str(folder), str(binaries)],
            capture_output=True,
            check=False,
            cwd="/",
        )
        if reaches.returncode == 0:
            return prefix
    return None


def _prefixes() -> Iterator[tuple[str, ...]]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "PostgreSQL does not run as root and setpriv is missing: install util-linux, "
            "or run Moraine as another user."
        )
    user = _unprivileged_user()
    identity = (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    yield *identity, "--inh-caps=-all"
    for capability in _CAPABILITIES:
        # The secure bit makes access(2), by which PostgreSQL finds its own binaries, respect
        # the capability. Other capabilities do not survive the exec.
        yield (
            *identity,
            "--securebits=+no_setuid_fixup",
            f"--inh-caps=-all,+{capability}",
            f"--ambient-caps=-all,+{capability}",
        )


def _unprivileged_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_USER)
    except KeyError as error:
        raise StackError(
            f"PostgreSQL does not run as root and there is no user {_USER!r} to run it as: "
            "add that user, or run Moraine as another one."
        ) from error
