"""Imported by the embedded Airflow through `airflow_local_settings.py`.

LocalExecutor forks its workers from the scheduler, and they fork the tasks. What the scheduler
has imported, a task has at once; importing PySpark and pandas anew would cost every task two to
three seconds. The other components have no use for them.
"""

import importlib
import sys

MODULES = ("pandas", "psycopg", "pyarrow", "pyspark.sql.connect.session")

if "scheduler" in sys.argv[1:2]:
    for module in MODULES:
        importlib.import_module(module)
