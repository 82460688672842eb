-- The records of keyed requests. A block that finds no row has changed nothing. Keys that a version
-- before 0010 reserved have no principal; they belong to any caller, until they expire.

-- name: reserve
-- Accept a key, or read what is known of it. An expired key is unknown. No row: another request
-- accepted the key at the same moment.
-- A known key is only read: locking its row would cost a write to the disk.
WITH known AS (
    SELECT payload_hash, intent, attempts, http_status, response_headers, response_body,
           http_status IS NULL AND lease_expires_at <= now() AS abandoned
    FROM idempotency_records
    WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
      AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s
      AND expires_at > now() AND owner IS DISTINCT FROM %(owner)s
), reserved AS (
    INSERT INTO idempotency_records AS old
        (realm_id, principal, method, resource_path, idempotency_key, payload_hash, intent, owner,
         lease_expires_at, expires_at)
    SELECT %(realm_id)s, %(principal)s, %(method)s, %(resource_path)s, %(idempotency_key)s,
           %(payload_hash)s, %(intent)s, %(owner)s, now() + %(lease)s, now() + %(keep)s
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (realm_id, principal, method, resource_path, idempotency_key) DO UPDATE SET
        payload_hash = excluded.payload_hash, intent = excluded.intent, owner = excluded.owner,
        attempts = 1, lease_expires_at = excluded.lease_expires_at, http_status = NULL,
        response_headers = NULL, response_body = NULL, created_at = now(), updated_at = now(),
        expires_at = excluded.expires_at
        WHERE old.expires_at <= now() OR old.owner = excluded.owner
    RETURNING true AS is_new
)
SELECT is_new, payload_hash, intent, attempts, http_status, response_headers, response_body,
       abandoned
FROM reserved FULL JOIN known ON true

-- name: find
-- What is known of a key.
SELECT payload_hash, intent, attempts, http_status, response_headers, response_body,
       http_status IS NULL AND lease_expires_at <= now() AS abandoned
FROM idempotency_records
WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
  AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s
  AND expires_at > now()

-- name: take_over
-- Take a key over whose lease expired before its outcome was written.
UPDATE idempotency_records
SET owner = %(owner)s, attempts = attempts + 1, lease_expires_at = now() + %(lease)s,
    updated_at = now()
WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
  AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s AND attempts = %(attempts)s
  AND http_status IS NULL AND lease_expires_at <= now() AND expires_at > now()
RETURNING attempts

-- name: finalize
-- Write the outcome, if the caller still holds the key.
-- It need not reach the disk before the response is sent: if a crash of the database loses it, the
-- reservation is open again and gets reconciled.
UPDATE idempotency_records
SET http_status = %(status)s, response_headers = %(headers)s, response_body = %(body)s,
    owner = NULL, updated_at = now()
WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
  AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s
  AND owner = %(owner)s AND attempts = %(attempts)s AND http_status IS NULL
RETURNING set_config('synchronous_commit', 'off', true)

-- name: abandon
-- Give a key up whose outcome is unknown: the next request with it reconciles without waiting.
UPDATE idempotency_records SET owner = NULL, lease_expires_at = now(), updated_at = now()
WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
  AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s
  AND owner = %(owner)s AND attempts = %(attempts)s AND http_status IS NULL
RETURNING attempts

-- name: release
-- Forget a key whose request was not tried.
DELETE FROM idempotency_records
WHERE realm_id = %(realm_id)s AND principal IN (%(principal)s, '') AND method = %(method)s
  AND resource_path = %(resource_path)s AND idempotency_key = %(idempotency_key)s
  AND owner = %(owner)s AND attempts = %(attempts)s AND http_status IS NULL
RETURNING attempts

-- name: heartbeat
-- Extend the leases of requests that are being executed.
UPDATE idempotency_records SET lease_expires_at = now() + %(lease)s
WHERE owner = ANY(%(owners)s) AND http_status IS NULL
RETURNING attempts

-- name: abandoned
-- Keys without an outcome whose lease expired some time ago, oldest first.
SELECT realm_id, principal, method, resource_path, idempotency_key, intent, attempts
FROM idempotency_records
WHERE http_status IS NULL AND lease_expires_at <= now() - %(quiet)s AND expires_at > now()
  AND realm_id = %(realm_id)s
ORDER BY lease_expires_at LIMIT %(limit)s

-- name: remove_expired
-- Remove one batch of expired keys, oldest first.
DELETE FROM idempotency_records
WHERE (realm_id, principal, method, resource_path, idempotency_key) IN (
    SELECT realm_id, principal, method, resource_path, idempotency_key FROM idempotency_records
    WHERE expires_at <= now() ORDER BY expires_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)
RETURNING 1 AS removed

-- name: counts
-- How many keys are in which state.
SELECT CASE WHEN http_status IS NOT NULL THEN 'finalized'
            WHEN lease_expires_at <= now() THEN 'abandoned'
            ELSE 'in progress' END AS state, count(*) AS records
FROM idempotency_records WHERE expires_at > now() GROUP BY 1

-- name: ping
-- Whether the database answers.
SELECT 1 AS alive
