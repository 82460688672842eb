-- store.py fills in {task} and {version}, the columns of those records, {leased}, the leased
-- states, and {take_over}; and it chains the blocks that are but a common table expression.

-- name: insert
-- Write new tasks and the first version of each.
WITH added AS (
    INSERT INTO tasks (task_id, parent_id, realm_id, task_type, task_payload, subject, exclusive,
                       correlation_id)
    SELECT task_id, parent_id, realm_id, task_type, task_payload, subject, exclusive,
           correlation_id
    FROM jsonb_to_recordset(%(tasks)s) AS given (
        task_id uuid, parent_id uuid, realm_id text, task_type text, task_payload jsonb,
        subject text, exclusive boolean, correlation_id text)
    RETURNING *
), logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason FROM added
)
SELECT {task} FROM added

-- name: pick_oldest
-- Runnable tasks, oldest first: new ones, due retries, and those whose lease ran out. The limit is
-- a subquery and the types are a block of their own so that one plan, made once, fits every call.
picked AS MATERIALIZED (
    SELECT task_id FROM tasks
    WHERE runnable_ts <= now()
    ORDER BY runnable_ts LIMIT (SELECT %(limit)s::int)
    FOR UPDATE SKIP LOCKED
)

-- name: pick_oldest_of_types
picked AS MATERIALIZED (
    SELECT task_id FROM tasks
    WHERE runnable_ts <= now() AND task_type = ANY(%(task_types)s)
    ORDER BY runnable_ts LIMIT (SELECT %(limit)s::int)
    FOR UPDATE SKIP LOCKED
)

-- name: pick_one
-- This task, if it is runnable. Nobody holds a row for long: wait for one that is being written
-- (a cancel, a last heartbeat) rather than take it for leased.
picked AS MATERIALIZED (
    SELECT task_id FROM tasks
    WHERE task_id = %(task_id)s AND runnable_ts <= now()
    FOR UPDATE
)

-- name: lease
-- Lease what was picked. An array, not a join: whatever the statistics say, the plan is one look
-- into the primary key for each task.
claimed AS (
    UPDATE tasks SET
        version = version + 1, status = %(lease_status)s, last_status_change_ts = now(),
        reason = CASE WHEN status IN ({leased}) THEN {take_over} ELSE 'claimed' END,
        attempt_count = attempt_count + 1, next_scheduled_run_ts = NULL, progress = NULL,
        lease_owner = %(owner)s, lease_acquired_ts = now(), lease_expires_ts = now() + %(lease)s,
        lease_losses = lease_losses + (status IN ({leased}))::int
    WHERE task_id = ANY(ARRAY(SELECT task_id FROM picked))
    RETURNING *
), claims_logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason, lease_owner, lease_acquired_ts)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason, lease_owner,
           lease_acquired_ts
    FROM claimed
)

-- name: advance
-- Move a task on, from the version its writer holds and from a state that allows it.
WITH moved AS (
    UPDATE tasks SET
        version = version + 1, status = %(status)s, last_status_change_ts = now(),
        reason = %(reason)s, next_scheduled_run_ts = %(next_run)s,
        lease_expires_ts = CASE WHEN %(keeps_lease)s THEN now() + %(lease)s END,
        cancel_requested_ts = CASE WHEN %(restarts)s THEN NULL ELSE cancel_requested_ts END,
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
                              error_code, result_summary, result_extended)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, reason,
           next_scheduled_run_ts, lease_owner, lease_acquired_ts, error_code, result_summary,
           result_extended
    FROM moved
)
SELECT {task} FROM moved

-- name: finish
-- Advance a batch whose work succeeded, with no more in it than that needs.
finished AS (
    UPDATE tasks SET
        version = version + 1, status = 'SUCCESS', last_status_change_ts = now(),
        reason = 'succeeded', lease_expires_ts = NULL, error_code = NULL,
        result_summary = %(summary)s, result_extended = NULL
    WHERE task_id = ANY(%(task_ids)b::uuid[]) AND version = %(version)s AND status = 'RUNNING'
    RETURNING task_id, version, status, last_status_change_ts, attempt_count, reason, lease_owner,
              lease_acquired_ts, result_summary
), ends_logged AS (
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason, lease_owner, lease_acquired_ts, result_summary)
    SELECT * FROM finished
)

-- name: claimed_leases
SELECT task_id, version, lease_owner, task_type, subject, task_payload, checkpoint, attempt_count,
       reason = {take_over}
FROM claimed

-- name: claimed_task
SELECT {task} FROM claimed

-- name: finished_count
SELECT count(*) AS finished FROM finished

-- name: heartbeat
-- Extend a lease and report progress; no new version. No row: the lease is lost.
WITH beaten AS (
    UPDATE tasks SET lease_expires_ts = now() + %(lease)s,
                     progress = coalesce(%(progress)s, progress)
    WHERE task_id = %(task_id)s AND version = %(version)s AND status IN ({leased})
    RETURNING task_id, cancel_requested_ts IS NOT NULL AS cancel_requested
)
SELECT cancel_requested,
       CASE WHEN %(progress)s IS NOT NULL THEN pg_notify('moraine_tasks', task_id::text) END
FROM beaten

-- name: checkpoint
-- Remember how far an attempt came, for itself and for the next one.
UPDATE tasks SET checkpoint = checkpoint || %(patch)s
WHERE task_id = %(task_id)s AND version = %(version)s AND status IN ({leased})
RETURNING task_id

-- name: slice_totals
-- How far a task is, by stage.
SELECT stage, sum(files_done)::bigint AS files_done, sum(files_missing)::bigint AS files_missing,
       sum(bytes_done)::bigint AS bytes_done, sum(seconds) AS seconds
FROM task_slices WHERE task_id = %(task_id)s GROUP BY stage

-- name: finished_slices
SELECT slice FROM task_slices WHERE task_id = %(task_id)s AND stage = ANY(%(stages)s) AND finished

-- name: reopen_slices
-- Every slice is to be gone over again; what was counted before still counts.
UPDATE task_slices SET finished = false
FROM tasks
WHERE task_slices.task_id = tasks.task_id AND tasks.task_id = %(task_id)s
  AND tasks.version = %(version)s
RETURNING task_slices.slice

-- name: forget_slices
-- All is to be done again.
DELETE FROM task_slices USING tasks
WHERE task_slices.task_id = tasks.task_id AND tasks.task_id = %(task_id)s
  AND tasks.version = %(version)s
RETURNING task_slices.slice

-- name: request_cancel
-- Ask the worker that holds the task to stop at its next heartbeat.
UPDATE tasks SET cancel_requested_ts = coalesce(cancel_requested_ts, now())
WHERE task_id = %(task_id)s AND status IN ({leased})
RETURNING {task}

-- name: get
SELECT {task} FROM tasks WHERE task_id = %(task_id)s

-- name: get_many
SELECT {task} FROM tasks WHERE task_id = ANY(%(task_ids)b::uuid[])

-- name: history
SELECT {version} FROM task_history WHERE task_id = %(task_id)s ORDER BY version

-- name: find_exclusive
SELECT task_id FROM tasks
WHERE realm_id = %(realm_id)s AND task_type = %(task_type)s AND subject = %(subject)s
  AND exclusive AND runnable_ts IS NOT NULL

-- name: due
-- What should be at work but is not, oldest first.
SELECT {task} FROM tasks WHERE runnable_ts <= now() ORDER BY runnable_ts LIMIT %(limit)s

-- name: find
-- Newest first. Task ids are UUIDv7, so their order is the order of arrival.
SELECT {task} FROM tasks
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
-- One batch of retention. What is removed is added to the totals. A live task is never
-- touched, nor the finished parent of one.
WITH old AS MATERIALIZED (
    SELECT task_id FROM tasks AS parent
    WHERE runnable_ts IS NULL AND last_status_change_ts < now() - %(retention)s
      AND NOT EXISTS (SELECT FROM tasks AS child
                      WHERE child.parent_id = parent.task_id AND child.runnable_ts IS NOT NULL)
    ORDER BY last_status_change_ts LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM tasks WHERE task_id IN (SELECT task_id FROM old) RETURNING *
), removed_history AS (
    DELETE FROM task_history WHERE task_id IN (SELECT task_id FROM old)
), counted AS (
    INSERT INTO removed_task_totals AS totals
    SELECT task_type, status, count(*), sum(attempt_count), sum(lease_losses),
           coalesce(sum((result->>'files_deleted')::numeric), 0),
           coalesce(sum((result->>'bytes_deleted')::numeric), 0),
           sum(extract(epoch FROM last_status_change_ts - received_timestamp))
    FROM removed GROUP BY task_type, status
    ON CONFLICT (task_type, status) DO UPDATE SET
        tasks = totals.tasks + excluded.tasks,
        attempts = totals.attempts + excluded.attempts,
        lease_losses = totals.lease_losses + excluded.lease_losses,
        files_deleted = totals.files_deleted + excluded.files_deleted,
        bytes_deleted = totals.bytes_deleted + excluded.bytes_deleted,
        seconds = totals.seconds + excluded.seconds
)
SELECT task_id FROM removed

-- name: totals
-- What the metrics show, over the tasks that are here and those that retention removed.
SELECT task_type, status, sum(tasks) AS tasks, sum(attempts) AS attempts,
       sum(lease_losses) AS lease_losses, sum(files_deleted) AS files_deleted,
       sum(bytes_deleted) AS bytes_deleted, sum(seconds) AS seconds
FROM (
    SELECT task_type, status, count(*) AS tasks, sum(attempt_count) AS attempts,
           sum(lease_losses) AS lease_losses,
           coalesce(sum((result->>'files_deleted')::numeric), 0) AS files_deleted,
           coalesce(sum((result->>'bytes_deleted')::numeric), 0) AS bytes_deleted,
           sum(extract(epoch FROM last_status_change_ts - received_timestamp)) AS seconds
    FROM tasks GROUP BY task_type, status
    UNION ALL
    SELECT * FROM removed_task_totals
) AS parts
GROUP BY task_type, status

-- name: queue_age
-- How long the oldest task that should be at work has been waiting.
SELECT coalesce(extract(epoch FROM now() - min(runnable_ts)), 0) AS seconds
FROM tasks WHERE runnable_ts <= now()

-- name: ping
SELECT 1 AS alive
