-- name: add
-- Hide a table. No row: it is hidden already.
INSERT INTO tombstones (realm_id, catalog_name, namespace, table_name, table_uuid, task_id)
VALUES (%(realm_id)s, %(catalog_name)s, %(namespace)s, %(table_name)s, %(table_uuid)s, %(task_id)s)
ON CONFLICT DO NOTHING
RETURNING {columns}

-- name: find
SELECT {columns} FROM tombstones
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
  AND namespace = %(namespace)s AND table_name = %(table_name)s

-- name: list
SELECT {columns} FROM tombstones WHERE realm_id = %(realm_id)s ORDER BY created_at

-- name: of_task
SELECT {columns} FROM tombstones WHERE task_id = %(task_id)s

-- name: remove
-- The table is gone.
DELETE FROM tombstones WHERE task_id = %(task_id)s RETURNING {columns}

-- name: lift
-- Show the table again, if its purge has ended as a failure. The task's row is locked, so that
-- nobody starts it anew meanwhile; whoever does so later finds no tombstone, and stops.
WITH ended AS (
    SELECT task_id FROM tasks WHERE task_id = %(task_id)s AND status = 'FAILURE' FOR UPDATE)
DELETE FROM tombstones USING ended WHERE tombstones.task_id = ended.task_id
RETURNING {columns}

-- name: forget_orphans
-- Left by a process that was killed before it could write down the task: nothing was deleted.
DELETE FROM tombstones
WHERE realm_id = %(realm_id)s AND created_at < now() - %(age)s
  AND NOT EXISTS (SELECT FROM tasks WHERE tasks.task_id = tombstones.task_id)
RETURNING {columns}
