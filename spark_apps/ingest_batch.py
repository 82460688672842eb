"""Writes waiting ingest requests, or reads Kafka topics, on the Spark it was submitted to.

spark-submit ingest_batch.py [write | kafka]

It ends after `ingest.writer.run-duration` or `ingest.kafka.run-duration`, or cleanly on SIGTERM.
Any number of them may run. The ledger comes from MORAINE_LEDGER__URL, the rest from the settings.
"""

import argparse
import os

from pyspark.sql import SparkSession

from moraine import log
from moraine.ingest.processes import read_topics, write_ingested
from moraine.settings import get_settings

WORK = {"write": write_ingested, "kafka": read_topics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="?", default="write", choices=WORK)
    arguments = parser.parse_args()
    log.configure()
    spark = SparkSession.builder.appName(f"moraine {arguments.work}").getOrCreate()
    try:
        submitter = os.getppid()
        WORK[arguments.work](
            lambda: spark,
            get_settings().ledger.address,
            # Spark ends with the process that submitted this one.
            is_over=lambda: os.getppid() != submitter,
        )
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
