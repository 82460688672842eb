-- One row for each key. `id` is of one use of the key: the table's snapshots name both.

CREATE SEQUENCE ingest_ids;

CREATE TABLE ingest_ledger (
    key               text PRIMARY KEY,
    id                bigint NOT NULL UNIQUE DEFAULT nextval('ingest_ids'),
    door              text NOT NULL,
    database_name     text NOT NULL,
    table_name        text NOT NULL,
    auto_create       boolean NOT NULL,
    schema_evolve     boolean NOT NULL,
    -- receiving: the bytes still arrive. staged: they are durable. writing: in a batch.
    state             text NOT NULL CHECK (state IN
                          ('receiving', 'staged', 'writing', 'applied', 'rejected')),
    fingerprint       char(64),
    -- A file of the workspace; NULL when the bytes are in ingest_bodies.
    location          text,
    body_bytes        bigint NOT NULL DEFAULT 0,
    body_lines        bigint NOT NULL DEFAULT 0,
    batch             uuid,
    -- How often Spark failed with it. Then it is tried alone; after some times it is left alone.
    failures          integer NOT NULL DEFAULT 0,
    -- Whether it was in a batch whose writer was lost: the table may have it.
    doubtful          boolean NOT NULL DEFAULT false,
    lease_expires_at  timestamptz,
    snapshot_id       bigint,
    extent_count      integer,
    rows_ingested     bigint,
    bytes_written     bigint,
    error             jsonb,
    reserved_at       timestamptz NOT NULL DEFAULT now(),
    applied_at        timestamptz,
    expires_at        timestamptz
) WITH (fillfactor = 70);

CREATE INDEX ingest_ledger_staged ON ingest_ledger (id) WHERE state = 'staged';
CREATE INDEX ingest_ledger_batch ON ingest_ledger (batch) WHERE state = 'writing';
CREATE INDEX ingest_ledger_doubtful ON ingest_ledger (table_name)
    WHERE doubtful AND state IN ('staged', 'writing');
CREATE INDEX ingest_ledger_expires ON ingest_ledger (expires_at) WHERE expires_at IS NOT NULL;

-- Small bodies. They go when what they say is in the table.
CREATE TABLE ingest_bodies (
    id    bigint PRIMARY KEY REFERENCES ingest_ledger (id) ON DELETE CASCADE,
    body  bytea NOT NULL
);
ALTER TABLE ingest_bodies ALTER COLUMN body SET STORAGE EXTERNAL;

-- What one writer commits at once. A batch whose lease ran out is taken apart again.
CREATE TABLE ingest_batches (
    batch             uuid PRIMARY KEY,
    owner             text NOT NULL,
    database_name     text NOT NULL,
    table_name        text NOT NULL,
    lease_expires_at  timestamptz NOT NULL,
    -- Lost: its files may go once somebody else has committed to the table.
    lost              boolean NOT NULL DEFAULT false,
    files             jsonb NOT NULL DEFAULT '[]',
    created_at        timestamptz NOT NULL DEFAULT now()
);

-- What is forgotten with its key stays in these.
CREATE TABLE ingest_totals (
    door            text NOT NULL,
    outcome         text NOT NULL,
    requests        bigint NOT NULL DEFAULT 0,
    rows_ingested   bigint NOT NULL DEFAULT 0,
    bytes_received  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (door, outcome)
);

CREATE TABLE ingest_commits (
    door     text PRIMARY KEY,
    commits  bigint NOT NULL DEFAULT 0,
    seconds  double precision NOT NULL DEFAULT 0
);

-- Files that were seen below a watched prefix. A row stays for as long as its file does.
CREATE TABLE ingest_files (
    location       text COLLATE "C" PRIMARY KEY,
    version        text NOT NULL,
    size           bigint NOT NULL,
    -- settling: it may still be written to. taken: it goes the way of its key. done: its rows are
    -- in the table. refused: it is to be set aside.
    state          text NOT NULL CHECK (state IN ('settling', 'taken', 'done', 'refused')),
    key            text,
    -- Of the bytes that were last taken from here to the end.
    ingested       char(64),
    -- Where the file is moved to, once that is known.
    target         text,
    error          jsonb,
    -- Since when it is as it is.
    seen_at        timestamptz NOT NULL DEFAULT now(),
    taken_at       timestamptz
);

CREATE INDEX ingest_files_taken ON ingest_files (key) WHERE state = 'taken';

-- How far each topic's partition is behind, as its reader last saw it.
CREATE TABLE ingest_lags (
    topic          text NOT NULL,
    partition      integer NOT NULL,
    table_name     text NOT NULL,
    next_offset    bigint NOT NULL,
    end_offset     bigint NOT NULL,
    measured_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, partition, table_name)
);
