-- name: reserve
-- Accept a key, or say what is known of it. Forgotten are: what expired, what was refused (nothing
-- was written), and what its sender left before it was complete. No row: somebody else accepted
-- the key this very moment.
WITH known AS (
    SELECT {row} FROM ingest_ledger WHERE key = %(key)s AND NOT {forgotten}
), reserved AS (
    INSERT INTO ingest_ledger AS old
        (key, door, database_name, table_name, auto_create, schema_evolve, state, fingerprint,
         location, body_bytes, body_lines, lease_expires_at)
    SELECT %(key)s, %(door)s, %(database)s, %(table)s, %(auto_create)s, %(schema_evolve)s,
           %(state)s, %(fingerprint)s, %(location)s, %(bytes)s, %(lines)s, now() + %(lease)s
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (key) DO UPDATE SET
        id = nextval('ingest_ids'), door = excluded.door, database_name = excluded.database_name,
        table_name = excluded.table_name, auto_create = excluded.auto_create,
        schema_evolve = excluded.schema_evolve, state = excluded.state,
        fingerprint = excluded.fingerprint, location = excluded.location,
        body_bytes = excluded.body_bytes, body_lines = excluded.body_lines, batch = NULL,
        failures = 0, paused_until = NULL, doubtful = false,
        lease_expires_at = excluded.lease_expires_at, snapshot_id = NULL, extent_count = NULL,
        rows_ingested = NULL, bytes_written = NULL, error = NULL, reserved_at = now(),
        applied_at = NULL, expires_at = NULL
        WHERE {old_forgotten}
    RETURNING id AS new_id
), kept AS (
    INSERT INTO ingest_bodies (id, body)
    SELECT new_id, %(body)s FROM reserved WHERE %(body)s::bytea IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET body = excluded.body
), told AS (
    SELECT pg_notify('{staged_channel}', '') FROM reserved WHERE %(state)s = 'staged'
)
SELECT new_id, known.*, (SELECT count(*) FROM told) AS told
FROM reserved FULL JOIN known ON true

-- name: backlog
SELECT count(*) AS requests, coalesce(sum(body_bytes), 0)::bigint AS bytes,
       coalesce(extract(epoch FROM now() - min(reserved_at)), 0)::float8 AS age,
       count(*) FILTER (WHERE failures > 0) AS failing
FROM ingest_ledger WHERE state IN ('staged', 'writing')

-- name: receive
-- The bytes still arrive: keep others from taking the key.
UPDATE ingest_ledger SET lease_expires_at = now() + %(lease)s
WHERE id = %(id)s AND state = 'receiving' RETURNING id

-- name: stage
WITH staged AS (
    UPDATE ingest_ledger SET state = 'staged', fingerprint = %(fingerprint)s,
        location = %(location)s, body_bytes = %(bytes)s, body_lines = %(lines)s
    WHERE id = %(id)s AND state = 'receiving' RETURNING id
)
SELECT id, pg_notify('{staged_channel}', '') FROM staged

-- name: forget
-- Its bytes did not all arrive: as if it had never been sent.
DELETE FROM ingest_ledger WHERE id = %(id)s AND state = 'receiving' RETURNING id

-- name: find
SELECT {row} FROM ingest_ledger WHERE key = ANY(%(keys)s) AND NOT {expired}

-- name: count_replay
INSERT INTO ingest_totals AS old (door, outcome, requests) VALUES (%(door)s, 'replayed', 1)
ON CONFLICT (door, outcome) DO UPDATE SET requests = old.requests + 1
RETURNING requests

-- name: writers
SELECT count(*) AS alive FROM pg_stat_activity
WHERE application_name = 'moraine-writer' AND datname = current_database()

-- name: next_table
SELECT database_name, table_name FROM ingest_ledger
WHERE state = 'staged' AND {due}
  AND NOT (database_name || '.' || table_name) = ANY(%(busy)s)
ORDER BY id LIMIT 1

-- name: claim
-- The oldest, as many as go into one batch. What failed twice goes alone, so that the others do not
-- fail with it.
WITH oldest AS (
    SELECT id, body_bytes, body_lines, failures FROM ingest_ledger
    WHERE state = 'staged' AND database_name = %(database)s AND table_name = %(table)s
      AND {due}
    ORDER BY id LIMIT %(most_requests)s FOR UPDATE SKIP LOCKED
), picked AS (
    SELECT id FROM (
        SELECT id, row_number() OVER run AS place, sum(body_bytes) OVER run AS bytes,
               sum(body_lines) OVER run AS lines, max(failures) OVER run AS failures
        FROM oldest WINDOW run AS (ORDER BY id)
    ) AS counted
    WHERE place = 1 OR (bytes <= %(most_bytes)s AND lines <= %(most_rows)s AND failures < 2)
), opened AS (
    INSERT INTO ingest_batches (batch, owner, database_name, table_name, lease_expires_at)
    SELECT %(batch)s, %(owner)s, %(database)s, %(table)s, now() + %(lease)s
    WHERE EXISTS (SELECT FROM picked)
    ON CONFLICT (batch) DO NOTHING
)
UPDATE ingest_ledger SET state = 'writing', batch = %(batch)s
WHERE id IN (SELECT id FROM picked)
RETURNING {row}

-- name: bodies
SELECT id, body FROM ingest_bodies WHERE id = ANY(%(ids)s)

-- name: heartbeat
UPDATE ingest_batches SET lease_expires_at = now() + %(lease)s
WHERE batch = ANY(%(batches)s) AND NOT lost RETURNING batch

-- name: hold
-- Whether the batch is still its writer's, and which files it is about to commit.
UPDATE ingest_batches SET lease_expires_at = now() + %(lease)s, files = %(files)s
WHERE batch = %(batch)s AND NOT lost
RETURNING batch, set_config('synchronous_commit', 'off', true)

-- name: finalize
-- It need not reach the disk before the answer goes out: were it lost with the database, the next
-- writer would find the key in the table. `outcomes` has id, snapshot_id, extent_count, rows_ingested, bytes_written.
WITH outcomes AS (
    SELECT * FROM jsonb_to_recordset(%(outcomes)s) AS one (id bigint, snapshot_id bigint,
        extent_count integer, rows_ingested bigint, bytes_written bigint)
), applied AS (
    UPDATE ingest_ledger AS row
    SET state = 'applied', batch = NULL, snapshot_id = outcomes.snapshot_id,
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
SELECT id, pg_notify('{settled_channel}', ''), set_config('synchronous_commit', 'off', true)
FROM applied

-- name: reject
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
SELECT id, pg_notify('{settled_channel}', '') FROM rejected

-- name: release
-- Not this time: whoever comes next takes these rows again.
WITH released AS (
    UPDATE ingest_ledger
    SET state = 'staged', batch = NULL, failures = failures + %(blamed)s::boolean::integer,
        paused_until = CASE WHEN %(blamed)s THEN
            now() + least(%(longest_pause)s, %(pause)s * 4 ^ least(failures, 10)) END
    WHERE batch = %(batch)s AND state = 'writing' RETURNING id
)
SELECT id, pg_notify('{staged_channel}', '') FROM released

-- name: close_batch
DELETE FROM ingest_batches WHERE batch = %(batch)s RETURNING batch

-- name: lose_batches
-- Batches whose writer is silent: their rows are staged again. What of them is in the table after
-- all, the next writer finds there.
WITH silent AS (
    UPDATE ingest_batches SET lost = true
    WHERE NOT lost AND lease_expires_at <= now() RETURNING batch
), released AS (
    UPDATE ingest_ledger SET state = 'staged', batch = NULL, doubtful = true
    WHERE state = 'writing' AND batch IN (SELECT batch FROM silent) RETURNING id
)
SELECT batch, (SELECT count(*) FROM released) AS requests FROM silent

-- name: give_up_batch
WITH lost AS (
    UPDATE ingest_batches SET lost = true WHERE batch = %(batch)s AND NOT lost RETURNING batch
)
UPDATE ingest_ledger SET state = 'staged', batch = NULL, doubtful = true
WHERE state = 'writing' AND batch IN (SELECT batch FROM lost) RETURNING id

-- name: open_batch
-- Of a door that has no requests. Files may be written from now on.
INSERT INTO ingest_batches (batch, owner, database_name, table_name, lease_expires_at)
VALUES (%(batch)s, %(owner)s, %(database)s, %(table)s, now() + %(lease)s)
ON CONFLICT (batch) DO NOTHING RETURNING batch

-- name: lost_batches
SELECT batch FROM ingest_batches
WHERE lost AND database_name = %(database)s AND table_name = %(table)s

-- name: lost_files
SELECT batch, files FROM ingest_batches
WHERE lost AND database_name = %(database)s AND table_name = %(table)s AND created_at < %(before)s

-- name: count_commit
INSERT INTO ingest_commits AS old (door, commits, seconds) VALUES (%(door)s, 1, %(seconds)s)
ON CONFLICT (door) DO UPDATE SET commits = old.commits + 1,
    seconds = old.seconds + excluded.seconds
RETURNING commits

-- name: in_doubt
SELECT EXISTS (
    SELECT FROM ingest_batches
    WHERE database_name = %(database)s AND table_name = %(table)s AND batch <> %(batch)s
) OR EXISTS (
    SELECT FROM ingest_ledger
    WHERE doubtful AND state IN ('staged', 'writing')
      AND database_name = %(database)s AND table_name = %(table)s
) AS in_doubt

-- name: remove_expired
-- A dropped file that nobody has looked at since it was taken is still to learn its outcome.
DELETE FROM ingest_ledger WHERE key IN (
    SELECT key FROM ingest_ledger
    WHERE (expires_at <= now() - %(grace)s
           OR (state = 'receiving' AND lease_expires_at <= now() - %(lifetime)s - %(grace)s))
      AND NOT EXISTS (SELECT FROM ingest_files
                      WHERE ingest_files.key = ingest_ledger.key AND ingest_files.state = 'taken')
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING key

-- name: waiting_files
SELECT location FROM ingest_ledger
WHERE state IN ('receiving', 'staged', 'writing') AND location IS NOT NULL

-- name: totals
SELECT door, outcome, requests, rows_ingested, bytes_received FROM ingest_totals
ORDER BY door, outcome

-- name: commits
SELECT door, commits, seconds FROM ingest_commits ORDER BY door

-- name: count_messages
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
SELECT topic, partition, table_name, greatest(end_offset - next_offset, 0) AS lag FROM ingest_lags
ORDER BY topic, partition, table_name

-- name: note_lags
-- `partitions` has partition, next and end.
INSERT INTO ingest_lags (topic, partition, table_name, next_offset, end_offset)
SELECT %(topic)s, partition, %(table)s, next, "end"
FROM jsonb_to_recordset(%(partitions)s) AS one (partition integer, next bigint, "end" bigint)
ON CONFLICT (topic, partition, table_name) DO UPDATE SET next_offset = excluded.next_offset,
    end_offset = excluded.end_offset, measured_at = now()
RETURNING topic
