-- The worker's and the API's statements about tasks. `-- name:` starts a block; store.py runs it by
-- that name. The columns of a block are the fields of its record in model.py.

-- name: insert
-- Write a new task and the first version of its history.
WITH added AS (
    INSERT INTO tasks (task_id, realm_id, task_type, task_payload, subject, exclusive,
                       correlation_id, principal)
    VALUES (%(task_id)s, %(realm_id)s, %(task_type)s, %(task_payload)s, %(subject)s,
            %(exclusive)s, %(correlation_id)s, %(principal)s)
    RETURNING *
), logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason, principal)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason, principal
    FROM added
)
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM added

-- name: claim_one
-- Lease a task if it is runnable: new, due for a retry, or with an expired lease.
-- It waits for a row that is being written (a cancel, a last heartbeat) and then looks at it again;
-- no statement holds a row for long.
WITH claimed AS (
    UPDATE tasks SET
        version = version + 1, status = 'ACQUIRING_RESOURCES', last_status_change_ts = now(),
        reason = CASE WHEN status IN ('ACQUIRING_RESOURCES', 'RUNNING')
                      THEN 'taken over after a lost lease' ELSE 'claimed' END,
        attempt_count = attempt_count + 1, next_scheduled_run_ts = NULL, progress = NULL,
        lease_owner = %(owner)s, lease_acquired_ts = now(), lease_expires_ts = now() + %(lease)s,
        lease_losses = lease_losses + (status IN ('ACQUIRING_RESOURCES', 'RUNNING'))::int
    WHERE task_id = %(task_id)s AND runnable_ts <= now()
    RETURNING *
), logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason, lease_owner, lease_acquired_ts, principal)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason, lease_owner,
           lease_acquired_ts, principal
    FROM claimed
)
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM claimed

-- name: advance
-- Move a task on, from the version its writer holds and from a state that allows it.
-- The history names who caused it: the caller of a request, or who asked for the cancel that the
-- worker carries out, or else on whose behalf the task runs.
WITH moved AS (
    UPDATE tasks SET
        version = version + 1, status = %(status)s, last_status_change_ts = now(),
        reason = %(reason)s, next_scheduled_run_ts = %(next_run)s,
        lease_expires_ts = CASE WHEN %(keeps_lease)s THEN now() + %(lease)s END,
        cancel_requested_ts = CASE WHEN %(restarts)s THEN NULL ELSE cancel_requested_ts END,
        cancel_requested_by = CASE WHEN %(restarts)s THEN NULL ELSE cancel_requested_by END,
        principal = CASE WHEN %(restarts)s THEN coalesce(%(principal)s, principal)
                         ELSE principal END,
        attempt_count = CASE WHEN %(restarts)s THEN 0 ELSE attempt_count END,
        result = coalesce(%(result)s, result),
        error_code = %(error_code)s,
        result_summary = coalesce(%(summary)s, result_summary),
        result_extended = %(extended)s
    WHERE task_id = %(task_id)s AND version = %(version)s AND status = ANY(%(from_statuses)s)
    RETURNING *
), logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason, next_scheduled_run_ts, lease_owner, lease_acquired_ts,
                              error_code, result_summary, result_extended, principal)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason,
           next_scheduled_run_ts, lease_owner, lease_acquired_ts, error_code, result_summary,
           result_extended,
           coalesce(%(principal)s,
                    CASE WHEN error_code = 'CANCELLED' THEN cancel_requested_by END,
                    principal)
    FROM moved
)
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM moved

-- name: heartbeat
-- Extend a lease and report progress; no new version. No row: the lease is lost.
WITH beaten AS (
    UPDATE tasks SET lease_expires_ts = now() + %(lease)s,
                     progress = coalesce(%(progress)s, progress)
    WHERE task_id = %(task_id)s AND version = %(version)s
      AND status IN ('ACQUIRING_RESOURCES', 'RUNNING')
    RETURNING task_id, cancel_requested_ts IS NOT NULL AS cancel_requested
)
SELECT cancel_requested,
       CASE WHEN %(progress)s IS NOT NULL THEN pg_notify('moraine_tasks', task_id::text) END
FROM beaten

-- name: checkpoint
-- Save how far an attempt came, for its next steps and the next attempt. No row: the lease is lost.
UPDATE tasks SET checkpoint = checkpoint || %(patch)s
WHERE task_id = %(task_id)s AND version = %(version)s
  AND status IN ('ACQUIRING_RESOURCES', 'RUNNING')
RETURNING task_id

-- name: slice_totals
-- How far a task is, by stage.
SELECT stage, sum(files_done)::bigint AS files_done, sum(files_missing)::bigint AS files_missing,
       sum(bytes_done)::bigint AS bytes_done, sum(seconds) AS seconds
FROM task_slices WHERE task_id = %(task_id)s GROUP BY stage

-- name: finished_slices
-- The slices of some stages that need not be done again.
SELECT slice FROM task_slices WHERE task_id = %(task_id)s AND stage = ANY(%(stages)s) AND finished

-- name: reopen_slices
-- Have every slice gone over again; what was counted before still counts.
UPDATE task_slices SET finished = false
FROM tasks
WHERE task_slices.task_id = tasks.task_id AND tasks.task_id = %(task_id)s
  AND tasks.version = %(version)s
RETURNING task_slices.slice

-- name: forget_slices
-- Remove the slices of a task whose work starts again from the beginning.
DELETE FROM task_slices USING tasks
WHERE task_slices.task_id = tasks.task_id AND tasks.task_id = %(task_id)s
  AND tasks.version = %(version)s
RETURNING task_slices.slice

-- name: request_cancel
-- Ask the worker that holds the task to stop at its next heartbeat.
UPDATE tasks SET cancel_requested_ts = coalesce(cancel_requested_ts, now()),
                 cancel_requested_by = coalesce(cancel_requested_by, %(principal)s)
WHERE task_id = %(task_id)s AND status IN ('ACQUIRING_RESOURCES', 'RUNNING')
RETURNING task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
          received_timestamp, created_ts, last_status_change_ts, attempt_count,
          next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
          cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
          result_extended, correlation_id, reason, principal

-- name: get
-- One task.
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM tasks WHERE task_id = %(task_id)s

-- name: get_many
-- The tasks of a list that exist, in any order.
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM tasks WHERE task_id = ANY(%(task_ids)b::uuid[])

-- name: history
-- Every version of a task, oldest first.
SELECT version, status, last_status_change_ts, attempt_count, reason, next_scheduled_run_ts,
       lease_owner, error_code, result_summary, result_extended, principal
FROM task_history WHERE task_id = %(task_id)s ORDER BY version

-- name: find_exclusive
-- The live task that has a subject to itself.
SELECT task_id FROM tasks
WHERE realm_id = %(realm_id)s AND task_type = %(task_type)s AND subject = %(subject)s
  AND exclusive AND runnable_ts IS NOT NULL

-- name: due
-- Tasks that should be at work but are not, oldest first.
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM tasks WHERE runnable_ts <= now() ORDER BY runnable_ts LIMIT %(limit)s

-- name: find
-- A page of tasks, newest first. Task ids are UUIDv7, so their order is the order of arrival.
SELECT task_id, version, parent_id, realm_id, task_type, task_payload, subject, status,
       received_timestamp, created_ts, last_status_change_ts, attempt_count,
       next_scheduled_run_ts, lease_owner, lease_acquired_ts, lease_expires_ts,
       cancel_requested_ts, progress, checkpoint, result, error_code, result_summary,
       result_extended, correlation_id, reason, principal
FROM tasks
WHERE (%(before)s::uuid IS NULL OR task_id < %(before)s)
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(task_type)s::text IS NULL OR task_type = %(task_type)s)
  AND (%(subject)s::text IS NULL OR subject = %(subject)s)
  AND (%(realm_id)s::text IS NULL OR realm_id = %(realm_id)s)
  AND (%(parent_id)s::uuid IS NULL OR parent_id = %(parent_id)s)
  AND (%(received_from)s::timestamptz IS NULL OR received_timestamp >= %(received_from)s)
  AND (%(received_until)s::timestamptz IS NULL OR received_timestamp < %(received_until)s)
ORDER BY task_id DESC LIMIT %(limit)s

-- name: remove_finished
-- Remove one batch of tasks past their retention, and add them to the totals. Live tasks stay.
WITH old AS MATERIALIZED (
    SELECT task_id FROM tasks
    WHERE runnable_ts IS NULL AND last_status_change_ts < now() - %(retention)s
    ORDER BY last_status_change_ts LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM tasks WHERE task_id IN (SELECT task_id FROM old) RETURNING *
), removed_history AS (
    DELETE FROM task_history WHERE task_id IN (SELECT task_id FROM old)
), counted AS (
    INSERT INTO removed_task_totals AS totals
        (task_type, status, tasks, attempts, lease_losses, seconds)
    SELECT task_type, status, count(*), sum(attempt_count), sum(lease_losses),
           sum(extract(epoch FROM last_status_change_ts - received_timestamp))
    FROM removed GROUP BY task_type, status
    ON CONFLICT (task_type, status) DO UPDATE SET
        tasks = totals.tasks + excluded.tasks,
        attempts = totals.attempts + excluded.attempts,
        lease_losses = totals.lease_losses + excluded.lease_losses,
        seconds = totals.seconds + excluded.seconds
), figures_counted AS (
    INSERT INTO removed_task_figures AS totals (task_type, figure, total)
    SELECT task_type, figure, coalesce(sum((result->>figure)::numeric), 0)
    FROM removed CROSS JOIN unnest(%(figures)s::text[]) AS figure
    WHERE result ? figure
    GROUP BY task_type, figure
    ON CONFLICT (task_type, figure) DO UPDATE SET total = totals.total + excluded.total
)
SELECT task_id FROM removed

-- name: totals
-- Counts by type and state for the metrics, over the tasks here and those that retention removed.
SELECT task_type, status, sum(tasks) AS tasks, sum(attempts) AS attempts,
       sum(lease_losses) AS lease_losses, sum(seconds) AS seconds
FROM (
    SELECT task_type, status, count(*) AS tasks, sum(attempt_count) AS attempts,
           sum(lease_losses) AS lease_losses,
           sum(extract(epoch FROM last_status_change_ts - received_timestamp)) AS seconds
    FROM tasks GROUP BY task_type, status
    UNION ALL
    SELECT task_type, status, tasks, attempts, lease_losses, seconds FROM removed_task_totals
) AS parts
GROUP BY task_type, status

-- name: figure_totals
-- What the results of all tasks add up to, by type, for the figures that operations declare.
SELECT task_type, figure, sum(total) AS total
FROM (
    SELECT task_type, figure, coalesce(sum((result->>figure)::numeric), 0) AS total
    FROM tasks CROSS JOIN unnest(%(figures)s::text[]) AS figure
    WHERE result ? figure
    GROUP BY task_type, figure
    UNION ALL
    SELECT task_type, figure, total FROM removed_task_figures
) AS parts
GROUP BY task_type, figure

-- name: queue_age
-- How long the oldest task that should be at work has been waiting.
SELECT coalesce(extract(epoch FROM now() - min(runnable_ts)), 0) AS seconds
FROM tasks WHERE runnable_ts <= now()

-- name: ping
-- Whether the database answers.
SELECT 1 AS alive
