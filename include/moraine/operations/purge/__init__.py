"""Purge: delete every file of a table, once, in an order that can always be resumed."""

from moraine.operations.purge.payload import PurgeParameters
from moraine.tasks.operation import Operation

OPERATION = Operation(
    task_type="TABLE_PURGE",
    aliases=frozenset({"SYNCHRONOUS_TABLE_PURGE", "PURGE_TABLE", "DATA_FILE_PURGE"}),
    parameters=PurgeParameters,
    dag_id="table_purge",
)
