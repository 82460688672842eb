"""LocalExecutor forks its tasks from the scheduler: what is imported here, they have at once."""

import importlib
import sys

from moraine.local.scheduler import PRELOADED

__all__: list[str] = []

if "scheduler" in sys.argv[1:2]:
    for module in PRELOADED:
        importlib.import_module(module)
