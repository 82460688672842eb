"""Purge: delete every file of a table, once, in an order that can always be resumed."""

from moraine.operations.purge import errors  # noqa: F401  # a process that knows purges knows these
from moraine.operations.purge.model import PurgeParameters, form_of
from moraine.tasks.operation import Operation, OutcomeExample, ResultFigure

OPERATION = Operation(
    task_type="TABLE_PURGE",
    aliases=frozenset({"SYNCHRONOUS_TABLE_PURGE", "PURGE_TABLE", "DATA_FILE_PURGE"}),
    parameters=PurgeParameters,
    dag_id="table_purge",
    form_of=form_of,
    figures=(
        ResultFigure("files_deleted", "Files deleted"),
        ResultFigure("bytes_deleted", "Bytes deleted"),
    ),
    example=OutcomeExample(
        progress={"step": "delete", "files_done": 20, "files_total": 42},
        summary="42 files deleted, none is left.",
        result={"files_deleted": 42, "bytes_deleted": 123456},
    ),
)
