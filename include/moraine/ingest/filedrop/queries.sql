-- The statements of dropped files. A line `-- name: NAME` begins a statement; the comment below it says
-- what it does. Names in parentheses after a percent sign are psycopg's parameters.

-- name: lock
-- Only one watcher works at a time: a second one would find the same files. The number is arbitrary.
SELECT pg_try_advisory_lock(6094112538) AS locked

-- name: unlock
-- Let the next watcher work.
SELECT pg_advisory_unlock(6094112538) AS locked

-- name: known
-- What is known of files.
SELECT location, version, size, state, key, ingested, target, error,
       extract(epoch FROM now() - seen_at)::float8 AS age
FROM ingest_files WHERE location = ANY(%(locations)s)

-- name: note
-- Record files that are new or have changed. A file that is taken is settled first.
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
-- Mark a file as taken with a key. The key is kept until its outcome is known.
UPDATE ingest_files SET state = 'taken', key = %(key)s, taken_at = now()
WHERE location = %(location)s AND version = %(version)s
  AND (state = 'settling' OR (state = 'taken' AND key = %(key)s))
RETURNING location

-- name: put_back
-- Undo `take`: nothing of the file was stored.
UPDATE ingest_files SET state = 'settling', key = NULL, taken_at = NULL
WHERE location = %(location)s AND version = %(version)s AND state = 'taken' RETURNING location

-- name: taken
-- Taken files, with the requests of their keys, also expired ones. A request that was over before the
-- file was taken belongs to another file. Files that wait for the writer come last.
SELECT file.location, file.version, file.size, file.state, file.key, file.ingested, file.target,
       file.error, extract(epoch FROM now() - file.seen_at)::float8 AS age,
       request.state AS request_state, request.database_name, request.table_name,
       request.error AS request_error
FROM ingest_files AS file LEFT JOIN ingest_ledger AS request ON request.key = file.key
    AND NOT coalesce(request.expires_at <= file.taken_at, false)
    AND NOT (request.state = 'rejected' AND request.applied_at <= file.taken_at)
WHERE file.state = 'taken' AND file.location > %(start)s AND file.location < %(stop)s
ORDER BY request.state IN ('staged', 'writing') NULLS FIRST, file.taken_at LIMIT %(limit)s

-- name: finish
-- The rows of a file are in the table.
UPDATE ingest_files SET state = 'done', ingested = %(sha256)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('settling', 'taken')
RETURNING location, version, size, state, key, ingested, target, error,
          extract(epoch FROM now() - seen_at)::float8 AS age

-- name: refuse
-- A file was refused, because of `error`.
UPDATE ingest_files SET state = 'refused', error = %(error)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('settling', 'taken')
RETURNING location, version, size, state, key, ingested, target, error,
          extract(epoch FROM now() - seen_at)::float8 AS age

-- name: aim
-- Record where a file is about to be moved.
UPDATE ingest_files SET target = %(target)s
WHERE location = %(location)s AND version = %(version)s AND state IN ('done', 'refused')
RETURNING location, version, size, state, key, ingested, target, error,
          extract(epoch FROM now() - seen_at)::float8 AS age

-- name: forget
-- Remove files that are gone. `files` has location and version.
DELETE FROM ingest_files AS old
USING jsonb_to_recordset(%(files)s) AS one (location text, version text)
WHERE old.location = one.location AND old.version = one.version AND old.state <> 'taken'
RETURNING old.location

-- name: count
-- How many files are known below a prefix.
SELECT count(*) AS files FROM ingest_files
WHERE location > %(start)s AND location < %(stop)s AND state <> 'taken'

-- name: page
-- A page of the known files below a prefix, in the order of their names.
SELECT location, version, size, state, key, ingested, target, error,
       extract(epoch FROM now() - seen_at)::float8 AS age
FROM ingest_files
WHERE location > %(start)s AND location < %(stop)s AND state <> 'taken'
ORDER BY location LIMIT %(limit)s
