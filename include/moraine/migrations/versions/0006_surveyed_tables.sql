-- Where the tables of a catalog lie, so that no purge deletes a file of another table. An index: it
-- is made from the catalog, and made again if it is lost.

CREATE TABLE surveyed_tables (
    realm_id          text NOT NULL,
    catalog_name      text NOT NULL,
    -- SHA-256 of namespace and name, which may be longer than an index takes.
    table_key         bytea NOT NULL,
    namespace         text[] NOT NULL,
    table_name        text NOT NULL,
    -- The version that was looked at. Empty: the table's metadata file is gone.
    metadata_location text NOT NULL,
    -- Manifests up to this sequence number were read.
    sequence_number   bigint NOT NULL,
    looked_at         timestamptz NOT NULL,
    PRIMARY KEY (realm_id, catalog_name, table_key)
);

-- Folders with files of a table. Each ends with a slash, so what lies in it begins with it.
CREATE TABLE surveyed_places (
    realm_id     text NOT NULL,
    catalog_name text NOT NULL,
    place        text COLLATE "C" NOT NULL,
    table_key    bytea NOT NULL,
    -- Whether it is the table's location, and not only a folder that it names files in.
    is_location  boolean NOT NULL,
    PRIMARY KEY (realm_id, catalog_name, place, table_key),
    FOREIGN KEY (realm_id, catalog_name, table_key) REFERENCES surveyed_tables ON DELETE CASCADE
);
CREATE INDEX surveyed_places_of_table ON surveyed_places (realm_id, catalog_name, table_key);
