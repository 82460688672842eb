-- name: lock
-- One at a time: a second watcher would only find what the first is at. The number is arbitrary.
SELECT pg_try_advisory_lock(6094112538) AS locked

-- name: unlock
SELECT pg_advisory_unlock(6094112538) AS locked

-- name: known
SELECT {row} FROM ingest_files WHERE location = ANY(%(locations)s)

-- name: note
-- Files that are new, or not as they were. One that is taken goes its way first.
INSERT INTO ingest_files AS old (location, version, size, state)
SELECT location, version, size, 'settling'
FROM jsonb_to_recordset(%(files)s) AS one (location text, version text, size bigint)
ON CONFLICT (location) DO UPDATE SET
    version = excluded.version, size = excluded.size, state = 'settling', key = NULL,
    target = NULL, error = NULL, seen_at = now(), taken_at = NULL
    WHERE old.state <> 'taken'
      AND (old.version, old.size) IS DISTINCT FROM (excluded.version, excluded.size)
RETURNING location

-- name: take
-- From here on it goes the way of its key, which is kept until that is known.
UPDATE ingest_files SET state = 'taken', key = %(key)s, taken_at = now()
WHERE location = %(location)s AND version = %(version)s
  AND (state = 'settling' OR (state = 'taken' AND key = %(key)s))
RETURNING location

-- name: put_back
-- Nothing of it was kept after all.
UPDATE ingest_files SET state = 'settling', key = NULL, taken_at = NULL
WHERE location = %(location)s AND version = %(version)s AND state = 'taken' RETURNING location

-- name: taken
-- With what is known of their keys, also of those that have expired; but not of what was over
-- before the file was taken: that is another's.
SELECT {row}, of.state AS request_state, of.database_name, of.table_name,
       of.error AS request_error
FROM ingest_files LEFT JOIN ingest_ledger AS of ON of.key = ingest_files.key
    AND NOT coalesce(of.expires_at <= ingest_files.taken_at, false)
    AND NOT (of.state = 'rejected' AND of.applied_at <= ingest_files.taken_at)
WHERE ingest_files.state = 'taken'
  AND ingest_files.location > %(start)s AND ingest_files.location < %(stop)s
ORDER BY ingest_files.taken_at LIMIT %(limit)s

-- name: finish
UPDATE ingest_files SET state = 'done', ingested = %(sha256)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('settling', 'taken')
RETURNING {row}

-- name: refuse
UPDATE ingest_files SET state = 'refused', error = %(error)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('settling', 'taken')
RETURNING {row}

-- name: aim
UPDATE ingest_files SET target = %(target)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('done', 'refused')
RETURNING {row}

-- name: forget
DELETE FROM ingest_files AS old
USING jsonb_to_recordset(%(files)s) AS one (location text, version text)
WHERE old.location = one.location AND old.version = one.version AND old.state <> 'taken'
RETURNING old.location

-- name: count
SELECT count(*) AS files FROM ingest_files
WHERE location > %(start)s AND location < %(stop)s AND state <> 'taken'

-- name: page
SELECT {row} FROM ingest_files
WHERE location > %(start)s AND location < %(stop)s AND state <> 'taken'
ORDER BY location LIMIT %(limit)s
