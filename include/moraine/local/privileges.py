"""PostgreSQL refuses to run as root: run it as nobody then, wherever the project lies.

A clone below a home folder with mode 0700, or a virtual environment there, is out of nobody's
reach. Then the process keeps one capability, to search folders it may not enter; nothing is
opened to other users. Where even that is not to be had (some containers), the caller moves to a
folder that everybody reaches.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from moraine.local.errors import StackError

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
    """Whether nobody else can have put something there."""
    owners = {os.geteuid()} | ({_unprivileged_user().pw_uid} if is_root() else set())
    return path.lstat().st_uid in owners and not path.is_symlink()


def unprivileged(binaries: Path, folder: Path) -> tuple[str, ...] | None:
    """What to put before one of PostgreSQL's commands so that it does not run as root.

    Nothing when we are not root; None when there is no way to reach both the binaries and the
    folder as another user.
    """
    if not is_root():
        return ()
    for prefix in _prefixes():
        # pg_config looks for itself the way initdb and postgres do, which asks for more than
        # being allowed to run them.
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
        # the capability. Others than this one do not outlive the exec.
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
