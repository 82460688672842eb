-- The audit log. Rows are added and read, never changed or removed.

-- name: add
-- Write down a decision.
INSERT INTO audit_log (realm_id, issuer, subject, certificate, address, act, outcome, object,
                       task_id, reason)
VALUES (%(realm_id)s, %(issuer)s, %(subject)s, %(certificate)s, %(address)s, %(act)s, %(outcome)s,
        %(object)s, %(task_id)s, %(reason)s)
RETURNING id

-- name: find
-- A page of decisions, newest first.
SELECT id, recorded_at, realm_id, issuer, subject, certificate, address, act, outcome, object,
       task_id, reason
FROM audit_log
WHERE realm_id = %(realm_id)s
  AND (%(before)s::bigint IS NULL OR id < %(before)s)
  AND (%(subject)s::text IS NULL OR subject = %(subject)s)
  AND (%(act)s::text IS NULL OR act = %(act)s)
  AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)
  AND (%(object)s::text IS NULL OR (md5(object) = md5(%(object)s) AND object = %(object)s))
  AND (%(task_id)s::uuid IS NULL OR task_id = %(task_id)s)
  AND (%(since)s::timestamptz IS NULL OR recorded_at >= %(since)s)
ORDER BY id DESC LIMIT %(limit)s
