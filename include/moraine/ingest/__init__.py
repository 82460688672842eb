"""Ingest: bytes that arrive at a door become rows of an Iceberg table, exactly once.

`rest`, `otlp`, `kafka` and `filedrop` are the doors. REST, OTLP and file drop hand bytes to
`service`, which records them in the ledger (`store`) under a key. `writing` takes them from there
to the table; Kafka has its own ledger of offsets in the table itself and shares `writing.job`.
`coercion` turns JSON into Arrow, `tables` is Iceberg through PyIceberg. `api` and `processes`
assemble the parts.
"""
