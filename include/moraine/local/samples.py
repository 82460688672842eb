"""Tables to purge: for the demo, the tests and the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_orders(spark: SparkSession, table: str, *, snapshots: int = 3) -> None:
    """A format 2 table with several snapshots, row-level deletes and statistics."""
    namespace = table.rsplit(".", 1)[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    spark.sql(
        f"""
        CREATE TABLE {table} (id BIGINT, customer STRING, amount DECIMAL(10, 2), day DATE)
        USING iceberg PARTITIONED BY (days(day))
        TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read',
                       'write.update.mode' = 'merge-on-read')
        """
    )
    for number in range(snapshots):
        spark.sql(
            f"""
            INSERT INTO {table}
            SELECT id, concat('customer ', id % 7), id * 1.25,
                   date_add(DATE'2026-01-01', CAST(id % 4 AS INT))
            FROM range({number * 1000}, {number * 1000 + 1000})
            """  # noqa: S608 - the caller's own table
        )
    spark.sql(f"DELETE FROM {table} WHERE id % 5 = 0")  # noqa: S608
    spark.sql(f"UPDATE {table} SET amount = 0 WHERE id % 7 = 0")  # noqa: S608


def write_many_files(spark: SparkSession, table: str, files: int) -> None:
    """A table of so many small data files, in one snapshot.

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
