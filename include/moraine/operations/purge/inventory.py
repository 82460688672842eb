"""The inventory of a purge in the workspace: a file for each slice, and the list of their digests.

Other processes may be able to write to the workspace. So the ledger has the digest of that list,
and a slice that is not as it was planned is neither deleted nor taken for deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moraine.operations.purge import executor_work
from moraine.operations.purge.errors import InventoryChanged
from moraine.operations.purge.model import InventorySummary
from moraine.storage.files import local_path, make_private_folder, open_private, read_file

# Readers of Parquet ignore files whose name begins with an underscore.
_DIGESTS = "_digests.json"


def paths_to_delete(inventory: str, digests: Mapping[str, str]) -> Iterator[pa.Array[Any]]:
    """The paths of an inventory, slice by slice."""
    for _, files in planned_files(inventory, digests):
        yield files["path"].combine_chunks()


def planned_files(inventory: str, digests: Mapping[str, str]) -> Iterator[tuple[str, pa.Table]]:
    """The files to delete, slice by slice. Raises if a slice is not as it was planned."""
    folder = Path(local_path(inventory))
    for name, digest in digests.items():
        try:
            rows = pq.ParquetFile(folder / f"phase={name}").read(["path", "size", "outside"])
            is_planned = executor_work.digest_of_rows(rows) == digest
        except (OSError, pa.ArrowException, LookupError) as error:
            raise InventoryChanged(name) from error
        if not is_planned:
            raise InventoryChanged(name)
        yield name, rows.filter(pc.invert(rows["outside"]))


def commit_slices(target: str, names: Iterable[str], digests: Mapping[str, str]) -> None:
    """Move the slices of tasks that succeeded to where readers find them."""
    for phase in {name.partition("/")[0] for name in names}:
        Path(target, f"phase={phase}").mkdir(mode=0o700)
    for name in names:
        os.rename(Path(target, executor_work.UNCOMMITTED, name), Path(target, f"phase={name}"))
    make_private_folder(target)  # there is none of an inventory without files
    for name, content in ((_DIGESTS, render_digests(digests)), ("_SUCCESS", b"")):
        with open(open_private(Path(target, name)), "wb") as file:
            file.write(content)


def render_digests(digests: Mapping[str, str]) -> bytes:
    """The list of all slices. It lies beside them; the ledger has its digest."""
    return json.dumps(dict(sorted(digests.items()))).encode()


def read_digests(inventory: InventorySummary) -> dict[str, str]:
    """The digest of each slice, as it was planned."""
    content = read_file(f"{inventory.location}/{_DIGESTS}") or b""
    if hashlib.sha256(content).hexdigest() != inventory.digest:
        raise InventoryChanged(_DIGESTS)
    digests: dict[str, str] = json.loads(content)
    return digests
