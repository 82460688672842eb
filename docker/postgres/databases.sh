#!/bin/bash
# A role and a database of its own for each: the ledger is never among Airflow's tables.
set -euo pipefail

add_role() {
    psql --set=ON_ERROR_STOP=1 --username=postgres --set=name="$1" --set=password="$2" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
SQL
}

add() {
    add_role "$1" "$2"
    psql --set=ON_ERROR_STOP=1 --username=postgres --set=name="$1" <<'SQL'
CREATE DATABASE :"name" OWNER :"name";
SQL
}

add moraine "$MORAINE_LEDGER_PASSWORD"
# Spark's executors: `moraine ledger upgrade` lets them ask about tasks and report slices.
add_role moraine_executor "$MORAINE_EXECUTOR_PASSWORD"
add airflow "$AIRFLOW_DATABASE_PASSWORD"
add polaris "$POLARIS_DATABASE_PASSWORD"
