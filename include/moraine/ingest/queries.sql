-- The statements of the ingest ledger. A line `-- name: NAME` begins a statement; the comment below it
-- says what it does. Names in parentheses after a percent sign are psycopg's parameters.

-- name: reserve
-- Reserve a key, or return what is known of it. A key can be reserved again if it has expired, if its
-- request was rejected (nothing was written), or if its sender left before the body was complete. No
-- row: another caller reserved the key at the same moment.
WITH known AS (
    SELECT key, id, door, principal, client_key, database_name, table_name, auto_create,
           schema_evolve, state, fingerprint, location, body_bytes, body_lines, batch, failures,
           snapshot_id, extent_count, rows_ingested, bytes_written, error, reserved_at, applied_at,
           expires_at
    FROM ingest_ledger
    -- Keys that an earlier version reserved have no principal.
    WHERE (key = %(key)s OR key = %(client_key)s AND principal = '')
      AND NOT (expires_at IS NOT NULL AND expires_at <= now()
               OR state = 'rejected'
               OR state = 'receiving' AND lease_expires_at <= now())
), reserved AS (
    INSERT INTO ingest_ledger AS old
        (key, door, principal, client_key, database_name, table_name, auto_create, schema_evolve,
         state, fingerprint, location, body_bytes, body_lines, lease_expires_at)
    SELECT %(key)s, %(door)s, %(principal)s, %(client_key)s, %(database)s, %(table)s,
           %(auto_create)s, %(schema_evolve)s, %(state)s, %(fingerprint)s, %(location)s, %(bytes)s,
           %(lines)s, now() + %(lease)s
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (key) DO UPDATE SET
        id = nextval('ingest_ids'), door = excluded.door, database_name = excluded.database_name,
        table_name = excluded.table_name, auto_create = excluded.auto_create,
        schema_evolve = excluded.schema_evolve, state = excluded.state,
        fingerprint = excluded.fingerprint, location = excluded.location,
        body_bytes = excluded.body_bytes, body_lines = excluded.body_lines, batch = NULL,
        failures = 0, spark_failures = 0, paused_until = NULL, doubtful = false,
        lease_expires_at = excluded.lease_expires_at, snapshot_id = NULL, extent_count = NULL,
        rows_ingested = NULL, bytes_written = NULL, error = NULL, reserved_at = now(),
        applied_at = NULL, expires_at = NULL
        WHERE old.expires_at IS NOT NULL AND old.expires_at <= now()
           OR old.state = 'rejected'
           OR old.state = 'receiving' AND old.lease_expires_at <= now()
    RETURNING id AS new_id
), kept AS (
    INSERT INTO ingest_bodies (id, body)
    SELECT new_id, %(body)s FROM reserved WHERE %(body)s::bytea IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET body = excluded.body
), announced AS (
    SELECT pg_notify('moraine_ingest_staged', '') FROM reserved WHERE %(state)s = 'staged'
)
SELECT new_id, known.*, (SELECT count(*) FROM announced) AS announced
FROM reserved FULL JOIN known ON true

-- name: backlog
-- Count the requests that wait to be written.
SELECT count(*) AS requests, coalesce(sum(body_bytes), 0)::bigint AS bytes,
       coalesce(extract(epoch FROM now() - min(reserved_at)), 0)::float8 AS age,
       count(*) FILTER (WHERE failures > 0) AS failing
FROM ingest_ledger WHERE state IN ('staged', 'writing')

-- name: room
-- What each database takes of the room that there is: what waits to be written, and what is still
-- received.
SELECT database_name, count(*) AS requests, coalesce(sum(body_bytes), 0)::bigint AS bytes
FROM ingest_ledger
WHERE state IN ('staged', 'writing') OR state = 'receiving' AND lease_expires_at > now()
GROUP BY database_name

-- name: receive
-- Renew the reservation of a key whose bytes still arrive, and count those that have.
UPDATE ingest_ledger SET lease_expires_at = now() + %(lease)s, body_bytes = %(bytes)s
WHERE id = %(id)s AND state = 'receiving' RETURNING id

-- name: stage
-- The bytes are durable: announce the request to the writers.
WITH staged AS (
    UPDATE ingest_ledger SET state = 'staged', fingerprint = %(fingerprint)s,
        location = %(location)s, body_bytes = %(bytes)s, body_lines = %(lines)s
    WHERE id = %(id)s AND state = 'receiving' RETURNING id
)
SELECT id, pg_notify('moraine_ingest_staged', '') FROM staged

-- name: forget
-- Remove the reservation of a request whose bytes did not all arrive.
DELETE FROM ingest_ledger WHERE id = %(id)s AND state = 'receiving' RETURNING id

-- name: find
-- Requests by their keys.
SELECT key, id, door, principal, client_key, database_name, table_name, auto_create, schema_evolve,
       state, fingerprint, location, body_bytes, body_lines, batch, failures, snapshot_id,
       extent_count, rows_ingested, bytes_written, error, reserved_at, applied_at, expires_at
FROM ingest_ledger
WHERE key = ANY(%(keys)s) AND NOT (expires_at IS NOT NULL AND expires_at <= now())

-- name: find_of
-- The requests of a principal by the principal's own key, newest first: one for each table.
SELECT key, id, door, principal, client_key, database_name, table_name, auto_create, schema_evolve,
       state, fingerprint, location, body_bytes, body_lines, batch, failures, snapshot_id,
       extent_count, rows_ingested, bytes_written, error, reserved_at, applied_at, expires_at
FROM ingest_ledger
WHERE client_key = %(client_key)s AND principal IN (%(principal)s, '')
  AND NOT (expires_at IS NOT NULL AND expires_at <= now())
  AND (%(database)s::text IS NULL OR database_name = %(database)s)
  AND (%(table)s::text IS NULL OR table_name = %(table)s)
ORDER BY id DESC LIMIT 1

-- name: count_replay
-- Count a request that was answered from the ledger.
INSERT INTO ingest_totals AS old (door, outcome, requests) VALUES (%(door)s, 'replayed', 1)
ON CONFLICT (door, outcome) DO UPDATE SET requests = old.requests + 1
RETURNING requests

-- name: writers
-- Whether a writer is connected: it listens under this name.
SELECT count(*) AS alive FROM pg_stat_activity
WHERE application_name = 'moraine-writer' AND datname = current_database()

-- name: next_table
-- The table whose oldest due request has waited longest, except those in `busy`.
SELECT database_name, table_name FROM ingest_ledger
WHERE state = 'staged' AND (paused_until IS NULL OR paused_until <= now())
  AND NOT (database_name || '.' || table_name) = ANY(%(busy)s)
ORDER BY id LIMIT 1

-- name: claim
-- Claim the oldest requests of a table, up to the limits of a batch. A request on which Spark failed
-- twice is claimed alone, so that the others do not fail with it.
WITH oldest AS (
    SELECT id, body_bytes, body_lines, spark_failures FROM ingest_ledger
    WHERE state = 'staged' AND database_name = %(database)s AND table_name = %(table)s
      AND (paused_until IS NULL OR paused_until <= now())
    ORDER BY id LIMIT %(max_requests)s FOR UPDATE SKIP LOCKED
), picked AS (
    SELECT id FROM (
        SELECT id, row_number() OVER run AS place, sum(body_bytes) OVER run AS bytes,
               sum(body_lines) OVER run AS lines, max(spark_failures) OVER run AS failures
        FROM oldest WINDOW run AS (ORDER BY id)
    ) AS counted
    WHERE place = 1 OR (bytes <= %(max_bytes)s AND lines <= %(max_rows)s AND failures < 2)
), opened AS (
    INSERT INTO ingest_batches (batch, owner, database_name, table_name, lease_expires_at)
    SELECT %(batch)s, %(owner)s, %(database)s, %(table)s, now() + %(lease)s
    WHERE EXISTS (SELECT FROM picked)
    ON CONFLICT (batch) DO NOTHING
)
UPDATE ingest_ledger SET state = 'writing', batch = %(batch)s
WHERE id IN (SELECT id FROM picked)
RETURNING key, id, door, principal, client_key, database_name, table_name, auto_create,
          schema_evolve, state, fingerprint, location, body_bytes, body_lines, batch, failures,
          snapshot_id, extent_count, rows_ingested, bytes_written, error, reserved_at, applied_at,
          expires_at

-- name: bodies
-- Bodies that are kept in the ledger.
SELECT id, body FROM ingest_bodies WHERE id = ANY(%(ids)s)

-- name: heartbeat
-- Renew the leases of batches.
UPDATE ingest_batches SET lease_expires_at = now() + %(lease)s
WHERE batch = ANY(%(batches)s) AND NOT lost RETURNING batch

-- name: hold
-- Renew the lease of a batch and record the files that it is about to commit. No row: it was lost.
UPDATE ingest_batches SET lease_expires_at = now() + %(lease)s, files = %(files)s
WHERE batch = %(batch)s AND NOT lost
RETURNING batch, set_config('synchronous_commit', 'off', true)

-- name: finalize
-- Settle committed requests. The statement need not reach the disk before the answer goes out: if the
-- database loses it, the next writer finds the key in the table. `outcomes` has id, snapshot_id,
-- extent_count, rows_ingested, bytes_written.
WITH outcomes AS (
    SELECT * FROM jsonb_to_recordset(%(outcomes)s) AS one (id bigint, snapshot_id bigint,
        extent_count integer, rows_ingested bigint, bytes_written bigint)
), applied AS (
    UPDATE ingest_ledger AS row
    SET state = 'applied', batch = NULL, error = NULL, snapshot_id = outcomes.snapshot_id,
        extent_count = outcomes.extent_count, rows_ingested = outcomes.rows_ingested,
        bytes_written = outcomes.bytes_written, applied_at = now(),
        expires_at = now() + %(lifetime)s
    FROM outcomes
    WHERE row.id = outcomes.id AND row.state = 'writing' AND row.batch = %(batch)s
    RETURNING row.id, row.door, row.rows_ingested, row.body_bytes
), counted AS (
    INSERT INTO ingest_totals AS old (door, outcome, requests, rows_ingested, bytes_received)
    SELECT door, 'applied', count(*), sum(rows_ingested), sum(body_bytes) FROM applied GROUP BY door
    ON CONFLICT (door, outcome) DO UPDATE SET
        requests = old.requests + excluded.requests,
        rows_ingested = old.rows_ingested + excluded.rows_ingested,
        bytes_received = old.bytes_received + excluded.bytes_received
), forgotten AS (
    DELETE FROM ingest_bodies WHERE id IN (SELECT id FROM applied)
)
SELECT id, pg_notify('moraine_ingest_settled', ''), set_config('synchronous_commit', 'off', true)
FROM applied

-- name: reject
-- Settle refused requests. `outcomes` has id and error.
WITH outcomes AS (
    SELECT * FROM jsonb_to_recordset(%(outcomes)s) AS one (id bigint, error jsonb)
), rejected AS (
    UPDATE ingest_ledger AS row
    SET state = 'rejected', batch = NULL, error = outcomes.error, applied_at = now(),
        expires_at = now() + %(lifetime)s
    FROM outcomes
    WHERE row.id = outcomes.id AND row.state = 'writing' AND row.batch = %(batch)s
    RETURNING row.id, row.door, row.body_bytes
), counted AS (
    INSERT INTO ingest_totals AS old (door, outcome, requests, bytes_received)
    SELECT door, 'rejected', count(*), sum(body_bytes) FROM rejected GROUP BY door
    ON CONFLICT (door, outcome) DO UPDATE SET
        requests = old.requests + excluded.requests,
        bytes_received = old.bytes_received + excluded.bytes_received
), forgotten AS (
    DELETE FROM ingest_bodies WHERE id IN (SELECT id FROM rejected)
)
SELECT id, pg_notify('moraine_ingest_settled', '') FROM rejected

-- name: release
-- Return the requests of a batch to the queue. `error` is the reason, for callers who ask meanwhile. If
-- the requests are `blamed` for a failed Spark job, they pause: 4 times longer after each failure.
WITH released AS (
    UPDATE ingest_ledger
    SET state = 'staged', batch = NULL,
        failures = failures + (%(error)s::jsonb IS NOT NULL)::integer,
        error = coalesce(%(error)s, error),
        spark_failures = spark_failures + %(blamed)s::boolean::integer,
        paused_until = CASE WHEN %(blamed)s THEN
            now() + least(%(max_pause)s, %(pause)s * 4 ^ least(spark_failures, 10)) END
    WHERE batch = %(batch)s AND state = 'writing' RETURNING id
)
SELECT id, pg_notify('moraine_ingest_staged', '') FROM released

-- name: close_batch
-- Forget a batch that has no requests and no files left.
DELETE FROM ingest_batches WHERE batch = %(batch)s RETURNING batch

-- name: lose_batches
-- Take over batches whose lease has expired: their requests are staged again. If such a batch was
-- committed after all, the next writer finds its keys in the table.
WITH silent AS (
    UPDATE ingest_batches SET lost = true
    WHERE NOT lost AND lease_expires_at <= now() RETURNING batch
), released AS (
    UPDATE ingest_ledger SET state = 'staged', batch = NULL, doubtful = true
    WHERE state = 'writing' AND batch IN (SELECT batch FROM silent) RETURNING id
)
SELECT batch, (SELECT count(*) FROM released) AS requests FROM silent

-- name: give_up_batch
-- Mark a batch as lost, because it is unknown whether it was committed.
WITH lost AS (
    UPDATE ingest_batches SET lost = true WHERE batch = %(batch)s AND NOT lost RETURNING batch
)
UPDATE ingest_ledger SET state = 'staged', batch = NULL, doubtful = true,
    failures = failures + (%(error)s::jsonb IS NOT NULL)::integer,
    error = coalesce(%(error)s, error)
WHERE state = 'writing' AND batch IN (SELECT batch FROM lost) RETURNING id

-- name: open_batch
-- Open a batch for a door without requests. Its files may be written from now on.
INSERT INTO ingest_batches (batch, owner, database_name, table_name, lease_expires_at)
VALUES (%(batch)s, %(owner)s, %(database)s, %(table)s, now() + %(lease)s)
ON CONFLICT (batch) DO NOTHING RETURNING batch

-- name: lost_batches
-- Lost batches of a table.
SELECT batch FROM ingest_batches
WHERE lost AND database_name = %(database)s AND table_name = %(table)s

-- name: lost_files
-- Lost batches of a table that were opened before a commit began, with their files.
SELECT batch, files FROM ingest_batches
WHERE lost AND database_name = %(database)s AND table_name = %(table)s AND created_at < %(before)s

-- name: count_commit
-- Count a commit of the writer.
INSERT INTO ingest_commits AS old (door, commits, seconds) VALUES (%(door)s, 1, %(seconds)s)
ON CONFLICT (door) DO UPDATE SET commits = old.commits + 1,
    seconds = old.seconds + excluded.seconds
RETURNING commits

-- name: in_doubt
-- Whether a batch other than this one may have been committed without a record in the ledger.
SELECT EXISTS (
    SELECT FROM ingest_batches
    WHERE database_name = %(database)s AND table_name = %(table)s AND batch <> %(batch)s
) OR EXISTS (
    SELECT FROM ingest_ledger
    WHERE doubtful AND state IN ('staged', 'writing')
      AND database_name = %(database)s AND table_name = %(table)s
) AS in_doubt

-- name: note_made
-- Record a table that ingest created. It replaces an earlier table of the same name.
INSERT INTO ingest_tables (catalog_name, database_name, table_name, table_uuid)
VALUES (%(catalog)s, %(database)s, %(table)s, %(uuid)s)
ON CONFLICT (catalog_name, database_name, table_name) DO UPDATE
SET table_uuid = excluded.table_uuid, made_at = now()
RETURNING table_uuid

-- name: note_snapshot
-- Record a commit to a table that ingest created. The statement need not reach the disk at once: a
-- snapshot without a record is never expired.
INSERT INTO ingest_snapshots (table_uuid, snapshot_id, commit_uuid)
SELECT table_uuid, %(snapshot)s, %(commit)s FROM ingest_tables
WHERE catalog_name = %(catalog)s AND database_name = %(database)s
  AND table_name = %(table)s AND table_uuid = %(uuid)s
ON CONFLICT (table_uuid, snapshot_id) DO NOTHING
RETURNING snapshot_id, set_config('synchronous_commit', 'off', true)

-- name: snapshots
-- The recorded commits of a table that ingest created.
SELECT snapshot_id, commit_uuid FROM ingest_snapshots
WHERE table_uuid = (
    SELECT table_uuid FROM ingest_tables
    WHERE catalog_name = %(catalog)s AND database_name = %(database)s
      AND table_name = %(table)s AND table_uuid = %(uuid)s
)

-- name: forget_snapshots
-- Remove the records of snapshots that the table no longer has.
DELETE FROM ingest_snapshots
WHERE table_uuid = (
    SELECT table_uuid FROM ingest_tables
    WHERE catalog_name = %(catalog)s AND database_name = %(database)s
      AND table_name = %(table)s AND table_uuid = %(uuid)s
)
  AND NOT snapshot_id = ANY(%(kept)s)
RETURNING snapshot_id

-- name: remove_expired
-- Remove expired keys, except the key of a dropped file that was not looked at since it was taken: the
-- watcher still has to read its outcome.
DELETE FROM ingest_ledger WHERE key IN (
    SELECT key FROM ingest_ledger
    WHERE (expires_at <= now() - %(grace)s
           OR (state = 'receiving' AND lease_expires_at <= now() - %(lifetime)s - %(grace)s))
      AND NOT EXISTS (SELECT FROM ingest_files
                      WHERE ingest_files.key = ingest_ledger.key AND ingest_files.state = 'taken')
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING key

-- name: waiting_files
-- Staged files whose bytes are still to be written.
SELECT location FROM ingest_ledger
WHERE state IN ('receiving', 'staged', 'writing') AND location IS NOT NULL

-- name: totals
-- Requests, rows and bytes by door and outcome.
SELECT door, outcome, requests, rows_ingested, bytes_received FROM ingest_totals
ORDER BY door, outcome

-- name: commits
-- Commits and their seconds by door.
SELECT door, commits, seconds FROM ingest_commits ORDER BY door

-- name: count_messages
-- Count a commit of a door without keys.
WITH counted AS (
    INSERT INTO ingest_totals AS old (door, outcome, requests, rows_ingested, bytes_received)
    VALUES (%(door)s, 'applied', 1, %(rows)s, %(bytes)s),
           (%(door)s, 'rejected', %(rejected)s, 0, 0)
    ON CONFLICT (door, outcome) DO UPDATE SET
        requests = old.requests + excluded.requests,
        rows_ingested = old.rows_ingested + excluded.rows_ingested,
        bytes_received = old.bytes_received + excluded.bytes_received
)
INSERT INTO ingest_commits AS old (door, commits, seconds) VALUES (%(door)s, 1, %(seconds)s)
ON CONFLICT (door) DO UPDATE SET commits = old.commits + 1,
    seconds = old.seconds + excluded.seconds
RETURNING commits

-- name: lags
-- How many messages each table is behind its topic.
SELECT topic, partition, table_name, greatest(end_offset - next_offset, 0) AS lag FROM ingest_lags
ORDER BY topic, partition, table_name

-- name: note_lags
-- Record the next offset and the end of each partition. `partitions` has partition, next and end.
INSERT INTO ingest_lags (topic, partition, table_name, next_offset, end_offset)
SELECT %(topic)s, partition, %(table)s, next, "end"
FROM jsonb_to_recordset(%(partitions)s) AS one (partition integer, next bigint, "end" bigint)
ON CONFLICT (topic, partition, table_name) DO UPDATE SET next_offset = excluded.next_offset,
    end_offset = excluded.end_offset, measured_at = now()
RETURNING topic
