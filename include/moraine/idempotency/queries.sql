-- name: reserve
-- Accept a key, or say what is known of it. An expired one is unknown, whatever became of it. A
-- key that is known is only looked at: to lock its row would cost a write to the disk. No row: it
-- was accepted by somebody else this very moment.
WITH known AS (
    SELECT {record} FROM idempotency_records
    WHERE {this} AND expires_at > now() AND owner IS DISTINCT FROM %(owner)s
), reserved AS (
    INSERT INTO idempotency_records AS old
        (realm_id, method, resource_path, idempotency_key, payload_hash, intent, owner,
         lease_expires_at, expires_at)
    SELECT %(realm_id)s, %(method)s, %(resource_path)s, %(idempotency_key)s, %(payload_hash)s,
           %(intent)s, %(owner)s, now() + %(lease)s, now() + %(keep)s
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (realm_id, method, resource_path, idempotency_key) DO UPDATE SET
        payload_hash = excluded.payload_hash, intent = excluded.intent, owner = excluded.owner,
        attempts = 1, lease_expires_at = excluded.lease_expires_at, http_status = NULL,
        response_headers = NULL, response_body = NULL, created_at = now(), updated_at = now(),
        expires_at = excluded.expires_at
        WHERE old.expires_at <= now() OR old.owner = excluded.owner
    RETURNING true AS is_new
)
SELECT is_new, known.* FROM reserved FULL JOIN known ON true

-- name: find
SELECT {record} FROM idempotency_records WHERE {this} AND expires_at > now()

-- name: take_over
UPDATE idempotency_records
SET owner = %(owner)s, attempts = attempts + 1, lease_expires_at = now() + %(lease)s,
    updated_at = now()
WHERE {this} AND attempts = %(attempts)s
  AND http_status IS NULL AND lease_expires_at <= now() AND expires_at > now()
RETURNING attempts

-- name: finalize
-- It need not reach the disk before the answer goes out: were it lost with the database, the
-- reservation would be open again, and reconciled.
UPDATE idempotency_records
SET http_status = %(status)s, response_headers = %(headers)s, response_body = %(body)s,
    owner = NULL, updated_at = now()
WHERE {held}
RETURNING set_config('synchronous_commit', 'off', true)

-- name: abandon
-- The outcome is unknown: let the next request with this key find out, without waiting.
UPDATE idempotency_records SET owner = NULL, lease_expires_at = now(), updated_at = now()
WHERE {held}
RETURNING attempts

-- name: release
-- Nothing was tried: forget the key.
DELETE FROM idempotency_records WHERE {held} RETURNING attempts

-- name: heartbeat
UPDATE idempotency_records SET lease_expires_at = now() + %(lease)s
WHERE owner = ANY(%(owners)s) AND http_status IS NULL
RETURNING attempts

-- name: abandoned
-- What nobody has come back for since its lease ran out, oldest first.
SELECT realm_id, method, resource_path, idempotency_key, intent, attempts
FROM idempotency_records
WHERE http_status IS NULL AND lease_expires_at <= now() - %(quiet)s AND expires_at > now()
  AND realm_id = %(realm_id)s
ORDER BY lease_expires_at LIMIT %(limit)s

-- name: remove_expired
DELETE FROM idempotency_records
WHERE (realm_id, method, resource_path, idempotency_key) IN (
    SELECT realm_id, method, resource_path, idempotency_key FROM idempotency_records
    WHERE expires_at <= now() ORDER BY expires_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)
RETURNING 1 AS removed

-- name: counts
SELECT CASE WHEN http_status IS NOT NULL THEN 'finalized'
            WHEN lease_expires_at <= now() THEN 'abandoned'
            ELSE 'in progress' END AS state, count(*) AS records
FROM idempotency_records WHERE expires_at > now() GROUP BY 1

-- name: ping
SELECT 1 AS alive
