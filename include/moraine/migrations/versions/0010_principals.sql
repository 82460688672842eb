-- Who asked. Empty: before callers were written down.

-- On whose behalf the task runs: who submitted it, or who had it run again.
ALTER TABLE tasks ADD COLUMN principal text NOT NULL DEFAULT '',
                  ADD COLUMN cancel_requested_by text;
-- Who caused this version.
ALTER TABLE task_history ADD COLUMN principal text NOT NULL DEFAULT '';
ALTER TABLE tombstones ADD COLUMN principal text NOT NULL DEFAULT '';

-- A key belongs to its principal: what others do with the same key is a different request.
ALTER TABLE idempotency_records ADD COLUMN principal text NOT NULL DEFAULT '';
ALTER TABLE idempotency_records DROP CONSTRAINT idempotency_records_pkey;
ALTER TABLE idempotency_records
    ADD PRIMARY KEY (realm_id, principal, method, resource_path, idempotency_key);

-- `key` is unique for principal and table; `client_key` is what the principal calls it.
ALTER TABLE ingest_ledger ADD COLUMN principal text NOT NULL DEFAULT '',
                          ADD COLUMN client_key text NOT NULL DEFAULT '';
UPDATE ingest_ledger SET client_key = key;
CREATE INDEX ingest_ledger_client_key ON ingest_ledger (client_key);

-- What takes room, by database: each door looks it up before it takes more.
CREATE INDEX ingest_ledger_room ON ingest_ledger (database_name)
    WHERE state IN ('receiving', 'staged', 'writing');

-- Decisions, one row each. Nothing of Moraine's removes them.
CREATE TABLE audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recorded_at  timestamptz NOT NULL DEFAULT now(),
    realm_id     text NOT NULL,
    issuer       text NOT NULL,
    subject      text NOT NULL,
    certificate  text,
    address      text NOT NULL,
    act          text NOT NULL,
    outcome      text NOT NULL CHECK (outcome IN ('allowed', 'refused')),
    object       text NOT NULL,
    task_id      uuid,
    reason       text NOT NULL
);
CREATE INDEX audit_log_task ON audit_log (task_id) WHERE task_id IS NOT NULL;
-- Names of tables may be longer than an index takes.
CREATE INDEX audit_log_object ON audit_log (md5(object), id) WHERE object <> '';

CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'audit_log is append-only'; END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
