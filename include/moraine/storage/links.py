"""Where a local folder really is, when symlinks are followed."""

from __future__ import annotations

import os


class LinkResolver:
    """As os.path.realpath, but each folder is looked at once; for one look at many paths.

    What it learnt is not kept any longer: links may change.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {"": "", "/": ""}

    def resolve(self, folder: str) -> str:
        """The folder's real path, without a slash at its end: the root is an empty text."""
        unknown: list[str] = []
        while folder not in self._known:
            unknown.append(folder)
            folder = folder.rpartition("/")[0]
        for folder in reversed(unknown):
            parent, _, name = folder.rpartition("/")
            self._known[folder] = _enter(self._known[parent], name)
        return self._known[unknown[0]] if unknown else self._known[folder]


def _enter(parent: str, name: str) -> str:
    if name in ("", "."):
        return parent
    if name == "..":
        return parent.rpartition("/")[0]
    path = f"{parent}/{name}"
    return os.path.realpath(path).rstrip("/") if os.path.islink(path) else path
