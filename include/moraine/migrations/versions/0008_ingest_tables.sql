-- The tables that ingest made itself. A property of a table could be set by any of its writers.
CREATE TABLE ingest_tables (
    catalog_name   text NOT NULL,
    database_name  text NOT NULL,
    table_name     text NOT NULL,
    table_uuid     uuid NOT NULL,
    made_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog_name, database_name, table_name)
);

-- What ingest committed to those tables. The names of the metadata files that a commit wrote begin
-- or end with its uuid, so what others wrote cannot be taken for it.
CREATE TABLE ingest_snapshots (
    table_uuid   uuid NOT NULL,
    snapshot_id  bigint NOT NULL,
    commit_uuid  uuid NOT NULL,
    PRIMARY KEY (table_uuid, snapshot_id)
);

-- `failures` counts all failed attempts from now on; these are those that Spark is to blame for.
ALTER TABLE ingest_ledger ADD COLUMN spark_failures integer NOT NULL DEFAULT 0;
UPDATE ingest_ledger SET spark_failures = failures WHERE failures > 0;
