-- Tasks and their history.

CREATE DOMAIN task_status AS text CHECK (VALUE IN (
    'SUBMITTED', 'ACQUIRING_RESOURCES', 'RUNNING', 'RETRY_SCHEDULED', 'SUCCESS', 'FAILURE'));

CREATE TABLE tasks (
    task_id                uuid PRIMARY KEY,
    version                integer NOT NULL DEFAULT 1,
    parent_id              uuid,
    realm_id               text NOT NULL,
    task_type              text NOT NULL,
    task_payload           jsonb NOT NULL,
    subject                text NOT NULL,
    exclusive              boolean NOT NULL DEFAULT false,
    status                 task_status NOT NULL DEFAULT 'SUBMITTED',
    reason                 text NOT NULL DEFAULT 'submitted',
    received_timestamp     timestamptz NOT NULL DEFAULT now(),
    created_ts             timestamptz NOT NULL DEFAULT now(),
    last_status_change_ts  timestamptz NOT NULL DEFAULT now(),
    attempt_count          integer NOT NULL DEFAULT 0,
    next_scheduled_run_ts  timestamptz,
    lease_owner            text,
    lease_acquired_ts      timestamptz,
    lease_expires_ts       timestamptz,
    lease_losses           integer NOT NULL DEFAULT 0,
    cancel_requested_ts    timestamptz,
    progress               jsonb,
    checkpoint             jsonb NOT NULL DEFAULT '{}',
    result                 jsonb,
    error_code             text,
    result_summary         text,
    result_extended        text,
    correlation_id         text,
    -- When a worker may take the task: at once, when its retry is due, or when its lease
    -- runs out. NULL is never. One partial index on it serves every claim, and finished
    -- tasks are not in it, so its size does not grow with the history.
    runnable_ts            timestamptz GENERATED ALWAYS AS (
        CASE status
            WHEN 'SUBMITTED' THEN last_status_change_ts
            WHEN 'RETRY_SCHEDULED' THEN next_scheduled_run_ts
            WHEN 'ACQUIRING_RESOURCES' THEN lease_expires_ts
            WHEN 'RUNNING' THEN lease_expires_ts
        END) STORED
) WITH (fillfactor = 80);

CREATE INDEX tasks_runnable ON tasks (runnable_ts) WHERE runnable_ts IS NOT NULL;
CREATE UNIQUE INDEX tasks_exclusive ON tasks (realm_id, task_type, subject)
    WHERE exclusive AND runnable_ts IS NOT NULL;
CREATE INDEX tasks_parent ON tasks (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_finished ON tasks (last_status_change_ts) WHERE runnable_ts IS NULL;

CREATE TABLE task_history (
    task_id                uuid NOT NULL,
    version                integer NOT NULL,
    status                 task_status NOT NULL,
    last_status_change_ts  timestamptz NOT NULL,
    attempt_count          integer NOT NULL,
    reason                 text NOT NULL,
    next_scheduled_run_ts  timestamptz,
    lease_owner            text,
    lease_acquired_ts      timestamptz,
    error_code             text,
    result_summary         text,
    result_extended        text,
    PRIMARY KEY (task_id, version)
);

CREATE FUNCTION refuse_history_update() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'task_history is append-only'; END $$;
CREATE TRIGGER task_history_is_immutable BEFORE UPDATE ON task_history
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_history_update();

-- Every change of state is announced by whoever writes it, in as few notifications as fit.
CREATE FUNCTION announce_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('moraine_tasks', string_agg(task_id::text, ','))
        FROM (SELECT task_id, (row_number() OVER ()) / 200 AS part FROM added) AS parts
        GROUP BY part;
        RETURN NULL;
    END $$;
CREATE TRIGGER task_changes_are_announced AFTER INSERT ON task_history
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION announce_task_changes();

-- The record as the Delegation Service's specification draws it: one row per version.
CREATE VIEW task_versions AS
    SELECT h.task_id, h.version, t.parent_id, t.task_type, t.task_payload, h.status,
           t.received_timestamp, h.last_status_change_ts, h.attempt_count, t.created_ts,
           h.lease_acquired_ts, h.result_summary, h.result_extended
    FROM task_history h JOIN tasks t USING (task_id);

-- What retention has removed, so that totals never go down.
CREATE TABLE removed_task_totals (
    task_type       text NOT NULL,
    status          text NOT NULL,
    tasks           bigint NOT NULL,
    attempts        bigint NOT NULL,
    lease_losses    bigint NOT NULL,
    files_deleted   numeric NOT NULL,
    bytes_deleted   numeric NOT NULL,
    seconds         double precision NOT NULL,
    PRIMARY KEY (task_type, status)
);
