-- One row for each key that was accepted. Without http_status it is in progress.

CREATE TABLE idempotency_records (
    realm_id          text NOT NULL,
    method            text NOT NULL,
    resource_path     text NOT NULL,
    idempotency_key   text NOT NULL,
    payload_hash      char(64) NOT NULL,
    -- What the request is meant to bring about: enough to see whether it has.
    intent            jsonb NOT NULL,
    -- The process that executes it; NULL when it gave up without knowing the outcome.
    owner             text,
    attempts          integer NOT NULL DEFAULT 1,
    lease_expires_at  timestamptz NOT NULL,
    http_status       integer,
    response_headers  jsonb,
    -- Deflated. NULL with an http_status: too large to be kept.
    response_body     bytea,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz NOT NULL,
    PRIMARY KEY (realm_id, method, resource_path, idempotency_key)
) WITH (fillfactor = 80);

-- Bodies are deflated already.
ALTER TABLE idempotency_records ALTER COLUMN response_body SET STORAGE EXTERNAL;
CREATE INDEX idempotency_records_expires ON idempotency_records (expires_at);
CREATE INDEX idempotency_records_open ON idempotency_records (lease_expires_at)
    WHERE http_status IS NULL;

-- Tables that are being purged and dropped: to the gateway's clients they are gone.

CREATE TABLE tombstones (
    realm_id      text NOT NULL,
    catalog_name  text NOT NULL,
    namespace     text[] NOT NULL,
    table_name    text NOT NULL,
    table_uuid    text NOT NULL,
    task_id       uuid NOT NULL UNIQUE,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (realm_id, catalog_name, namespace, table_name)
);

CREATE FUNCTION announce_tombstones() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('moraine_tombstones', ''); RETURN NULL; END $$;
CREATE TRIGGER tombstones_are_announced AFTER INSERT OR UPDATE OR DELETE ON tombstones
    FOR EACH STATEMENT EXECUTE FUNCTION announce_tombstones();
