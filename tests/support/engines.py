"""What Spark and PyIceberg do with a table, from its creation to the moment before its drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.types import StringType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Any = pa.table({"id": pa.array([1, 2], pa.int64()), "item": ["tea", "salt"]})


def live_with_spark(spark: SparkSession, catalog: str, namespace: str) -> str:
    """Create, append, evolve, delete and rename; the table's location. It is called `bills`."""
    orders, bills = f"{catalog}.{namespace}.orders", f"{catalog}.{namespace}.bills"
    spark.sql(f"CREATE NAMESPACE {catalog}.{namespace}")
    spark.sql(
        f"CREATE TABLE {orders} (id BIGINT, item STRING) USING iceberg "
        "TBLPROPERTIES ('gc.enabled' = 'true', 'format-version' = '2')"
    )
    spark.sql(f"INSERT INTO {orders} VALUES (1, 'tea'), (2, 'salt')")
    spark.sql(f"ALTER TABLE {orders} ADD COLUMN price DOUBLE")
    spark.sql(f"INSERT INTO {orders} VALUES (3, 'rice', 1.5)")
    spark.sql(f"DELETE FROM {orders} WHERE id = 2")
    rows = {tuple(row) for row in spark.table(orders).collect()}
    assert rows == {(1, "tea", None), (3, "rice", 1.5)}
    spark.sql(f"ALTER TABLE {orders} RENAME TO {namespace}.bills")
    assert spark.table(bills).count() == 2
    location = spark.sql(f"DESCRIBE EXTENDED {bills}").where("col_name = 'Location'")
    return str(location.collect()[0]["data_type"])


def live_with_pyiceberg(catalog: Catalog, namespace: str, *, evolves: bool = True) -> str:
    """The same, as far as PyIceberg can."""
    catalog.create_namespace(namespace, {"owner": "me"})
    table = catalog.create_table(
        f"{namespace}.orders", schema=ROWS.schema, properties={"gc.enabled": "true"}
    )
    table.append(ROWS)
    rows = ROWS
    if evolves:
        with table.update_schema() as update:
            update.add_column("note", StringType())
        rows = rows.append_column("note", pa.array(["a", "b"]))
    table.append(rows)
    assert catalog.load_table(f"{namespace}.orders").scan().to_arrow().num_rows == 4
    catalog.rename_table(f"{namespace}.orders", f"{namespace}.bills")
    bills = catalog.load_table(f"{namespace}.bills")
    assert bills.schema().column_names == rows.column_names
    return bills.location()
