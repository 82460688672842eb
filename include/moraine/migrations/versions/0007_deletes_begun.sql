-- A purge writes down that it begins to delete before it does. Those of earlier versions did not.
UPDATE tasks SET checkpoint = checkpoint || '{"deleting": true}'
WHERE checkpoint ? 'root'
   OR coalesce(checkpoint->'phases', '{}') <> '{}'
   OR EXISTS (SELECT FROM task_slices WHERE task_slices.task_id = tasks.task_id);
