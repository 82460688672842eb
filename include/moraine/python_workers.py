"""Spark's Python workers, and the time they lose between two tasks."""

from __future__ import annotations

import functools
import gc
import sys
from zipimport import zipimporter


def keep_lean() -> None:
    """Spare the worker's next task; to be called when the work of one is done.

    Before every task PySpark lets Python forget what lies on its path. Python 3.11 then reads the
    directory of `pyspark.zip` again, once for each package that was ever imported from it. After
    every task PySpark collects garbage, among all objects of all modules. Together this is 0.17 s
    of a core for each task, more than most of ours take.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
    _freeze_modules()


@functools.cache
def _freeze_modules() -> None:
    """What was imported stays: the collector need not look at it again. Once in a process."""
    gc.collect()
    gc.freeze()
