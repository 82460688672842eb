-- Tables that the gateway hides. The columns of a block are the fields of `Tombstone`.

-- name: add
-- Hide a table. No row: it is hidden already.
INSERT INTO tombstones (realm_id, catalog_name, namespace, table_name, table_uuid, task_id,
                        principal)
VALUES (%(realm_id)s, %(catalog_name)s, %(namespace)s, %(table_name)s, %(table_uuid)s, %(task_id)s,
        %(principal)s)
ON CONFLICT DO NOTHING
RETURNING realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal

-- name: find
-- The tombstone of a table, by its name.
SELECT realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal
FROM tombstones
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
  AND namespace = %(namespace)s AND table_name = %(table_name)s

-- name: list
-- Every tombstone of a realm, oldest first.
SELECT realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal
FROM tombstones WHERE realm_id = %(realm_id)s ORDER BY created_at

-- name: of_task
-- The tombstone that a purge belongs to.
SELECT realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal
FROM tombstones WHERE task_id = %(task_id)s

-- name: remove
-- Remove a tombstone: the catalog has dropped the table.
DELETE FROM tombstones WHERE task_id = %(task_id)s
RETURNING realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal

-- name: lift
-- Show a table again whose purge failed before it deleted anything.
-- The task's row is locked, so that the purge is not restarted at the same time. A purge that is
-- restarted later finds no tombstone and stops.
WITH ended AS (
    SELECT task_id FROM tasks
    WHERE task_id = %(task_id)s AND status = 'FAILURE'
      AND NOT coalesce((checkpoint->'deleting')::boolean, false)
    FOR UPDATE)
DELETE FROM tombstones USING ended WHERE tombstones.task_id = ended.task_id
RETURNING tombstones.realm_id, tombstones.catalog_name, tombstones.namespace,
          tombstones.table_name, tombstones.table_uuid, tombstones.task_id, tombstones.created_at,
          tombstones.principal

-- name: forget_orphans
-- Remove tombstones of processes that were killed before they wrote the task: nothing was deleted.
DELETE FROM tombstones
WHERE realm_id = %(realm_id)s AND created_at < now() - %(age)s
  AND NOT EXISTS (SELECT FROM tasks WHERE tasks.task_id = tombstones.task_id)
RETURNING realm_id, catalog_name, namespace, table_name, table_uuid, task_id, created_at, principal
