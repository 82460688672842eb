"""Runs steps of a purge on the Spark it was submitted to.

spark-submit purge_table.py TASK_ID OWNER STEP [STEP …]

The task must be leased by OWNER. The ledger comes from MORAINE_LEDGER__URL.
"""

import argparse
from uuid import UUID

from pyspark.sql import SparkSession

from moraine import log
from moraine.operations.processes import submitted_worker
from moraine.operations.purge.service import SPARK_STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id", type=UUID)
    parser.add_argument("owner")
    parser.add_argument("steps", nargs="+", choices=SPARK_STEPS)
    arguments = parser.parse_args()
    log.configure()
    spark = SparkSession.builder.appName(f"moraine purge {arguments.task_id}").getOrCreate()
    try:
        with submitted_worker(arguments.owner) as worker:
            for step in arguments.steps:
                SPARK_STEPS[step](worker, arguments.task_id, lambda: spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
