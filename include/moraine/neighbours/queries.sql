-- name: known
-- The entry of every table of a catalog.
SELECT namespace, table_name, metadata_location, sequence_number, now() - looked_at AS age
FROM surveyed_tables WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s

-- name: write
-- Write the entry of a table. Its folders replace the earlier ones, or are added to them.
WITH seen AS (
    INSERT INTO surveyed_tables (realm_id, catalog_name, table_key, namespace, table_name,
                                 metadata_location, sequence_number, looked_at)
    VALUES (%(realm_id)s, %(catalog_name)s, %(table_key)s, %(namespace)s, %(table_name)s,
            %(metadata_location)s, %(sequence_number)s, now())
    ON CONFLICT (realm_id, catalog_name, table_key) DO UPDATE SET
        metadata_location = excluded.metadata_location,
        sequence_number = excluded.sequence_number, looked_at = excluded.looked_at
), replaced AS (
    DELETE FROM surveyed_places
    WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
      AND table_key = %(table_key)s AND (is_location OR NOT %(keeps_places)s)
      AND place <> ALL(%(places)s::text[])
)
INSERT INTO surveyed_places (realm_id, catalog_name, place, table_key, is_location)
SELECT %(realm_id)s, %(catalog_name)s, place, %(table_key)s, place = %(location)s
FROM unnest(%(places)s::text[]) AS place
ON CONFLICT (realm_id, catalog_name, place, table_key) DO UPDATE SET
    is_location = excluded.is_location
RETURNING place

-- name: touch
-- Note that tables were examined and have not changed.
UPDATE surveyed_tables SET looked_at = now()
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
  AND table_key = ANY(%(table_keys)s)
RETURNING table_key

-- name: forget
-- Remove tables that the catalog no longer has.
DELETE FROM surveyed_tables
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
  AND table_key = ANY(%(table_keys)s)
RETURNING table_key

-- name: overlapping
-- Tables with a folder that equals one of these, is inside one, or contains one. The greatest
-- character ends the range of the places that begin with a folder.
WITH near AS (
    SELECT table_key FROM surveyed_places
    WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
      AND place = ANY(%(around)s::text[])
    UNION
    SELECT below.table_key
    FROM unnest(%(places)s::text[]) AS own,
         LATERAL (SELECT table_key FROM surveyed_places
                  WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
                    AND place >= own COLLATE "C"
                    AND place < own || U&'\+10FFFF' COLLATE "C") AS below
)
SELECT namespace, table_name FROM surveyed_tables
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s
  AND table_key IN (SELECT table_key FROM near)

-- name: located_in
-- Tables whose location is inside a folder and is not that folder.
SELECT namespace, table_name
FROM surveyed_places JOIN surveyed_tables USING (realm_id, catalog_name, table_key)
WHERE realm_id = %(realm_id)s AND catalog_name = %(catalog_name)s AND is_location
  AND place > %(place)s COLLATE "C" AND place < %(place)s || U&'\+10FFFF' COLLATE "C"
LIMIT %(limit)s
