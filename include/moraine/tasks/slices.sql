-- What an executor asks and writes. queries.sql has the worker's statements about slices.

-- name: look
-- How long the attempt still holds the task. No row: it does not.
SELECT lease_expires_ts - clock_timestamp() AS time_left,
       cancel_requested_ts IS NOT NULL AS cancel_requested
FROM tasks
WHERE task_id = %(task_id)s AND version = %(version)s
  AND status IN ('ACQUIRING_RESOURCES', 'RUNNING')

-- name: begin
-- Begin a slice, if the attempt holds the task. An attempt that was lost may have begun it before.
INSERT INTO task_slices (task_id, stage, slice, version)
SELECT task_id, %(stage)s, %(slice)s, version FROM tasks
WHERE task_id = %(task_id)s AND version = %(version)s
  AND status IN ('ACQUIRING_RESOURCES', 'RUNNING')
ON CONFLICT (task_id, stage, slice) DO UPDATE SET version = excluded.version
RETURNING xmax <> 0 AS begun_before

-- name: report
-- Write how far a slice is, unless a later attempt has begun it again.
UPDATE task_slices SET files_done = %(files_done)s, files_missing = %(files_missing)s,
                       bytes_done = %(bytes_done)s, seconds = %(seconds)s,
                       finished = %(finished)s
WHERE task_id = %(task_id)s AND stage = %(stage)s AND slice = %(slice)s AND version = %(version)s
RETURNING slice
