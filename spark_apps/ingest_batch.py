"""Writes what the doors of ingest take in, on the Spark it was submitted to.

spark-submit ingest_batch.py

It ends after `ingest.writer.run-duration`, or cleanly on SIGTERM. Any number of them may run. The
ledger comes from MORAINE_LEDGER__URL, the catalog from the settings.
"""

import argparse
import os

from pyspark.sql import SparkSession

from moraine import log
from moraine.runtime import write_ingested
from moraine.settings import get_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="ingest", help="how the app calls itself")
    arguments = parser.parse_args()
    log.configure()
    spark = SparkSession.builder.appName(f"moraine {arguments.name}").getOrCreate()
    try:
        submitter = os.getppid()
        write_ingested(
            lambda: spark,
            get_settings().ledger.url.get_secret_value(),
            # Spark goes with the process that submitted this one.
            is_over=lambda: os.getppid() != submitter,
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
