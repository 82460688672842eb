"""Tables for the benchmarks of small purges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_many_files(spark: SparkSession, table: str, files: int) -> None:
    """A table of this many small data files, in one snapshot.

    The rows come in the order of the partitions, so that one file is open at a time.
    """
    namespace = table.rsplit(".", 1)[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    spark.sql(
        f"""
        CREATE TABLE {table} (id BIGINT, part INT) USING iceberg PARTITIONED BY (part)
        TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'none',
                       'write.spark.fanout.enabled' = 'false')
        """
    )
    spark.range(files).selectExpr("id", "CAST(id AS INT) AS part").coalesce(2).writeTo(
        table
    ).append()
