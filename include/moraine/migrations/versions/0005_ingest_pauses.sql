-- Until then nobody tries it: Spark has failed on it.
ALTER TABLE ingest_ledger ADD COLUMN paused_until timestamptz;
