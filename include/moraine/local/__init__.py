"""The embedded stack: PostgreSQL, an Iceberg catalog, Spark and Airflow on one machine.

For development, demos and tests. Every part is the real thing, run as a process on 127.0.0.1
with its data below one folder. Start with `Stack` in `stack.py`.
"""
