"""PostgreSQL: pools, named queries, notifications."""
