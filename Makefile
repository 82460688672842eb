PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Without cached bytecode every process compiles what it imports, and each worker of the tests
# rewrites every assert: two thirds of the time that collecting takes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo up down status logs test test-unit rck lint openapi lock clean \
        bench bench-ledger bench-latency bench-purge bench-neighbours bench-gateway bench-ingest

help: ## List these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Moraine needs Python 3.11: install it, or name it with 'make PYTHON=/path/to/python3.11 …'."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Moraine needs Python 3.11, but $(PYTHON) is $$($(PYTHON) --version)."; exit 1; }
	@echo "Creating the virtual environment $(VENV): about 1.5 GB, a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode -r requirements.lock
	@$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps -e .
	@touch $(READY)

setup: $(READY) ## Create the virtual environment and fetch the jars
	@$(BIN)/moraine setup

demo: $(READY) ## See it work: a purge, the gateway and ingest on this machine
	@$(BIN)/moraine demo

up: $(READY) ## Start the embedded stack and keep it running; TLS=1 for mutual TLS
	@$(BIN)/moraine up $(if $(TLS),--tls)

down: $(READY) ## Stop the embedded stack
	@$(BIN)/moraine down

status: $(READY) ## Show what runs and where
	@$(BIN)/moraine status

logs: $(READY) ## Follow the stack's logs
	@$(BIN)/moraine logs --follow

test: setup lint ## Run every test on real parts (under 20 minutes)
	@$(BIN)/pytest --numprocesses 2 --no-loadscope-reorder --durations 30

test-unit: $(READY) ## Run the tests that need no service (under 30 seconds)
	@$(BIN)/pytest --numprocesses 2 tests/unit

rck: setup ## Iceberg's compatibility kit with and without the gateway (two minutes)
	@$(BIN)/python tests/rck.py

lint: $(READY) ## Ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

openapi: $(READY) ## Regenerate docs/openapi.json and docs/ingest-openapi.json
	@$(BIN)/moraine api --openapi delegation > docs/openapi.json
	@$(BIN)/moraine api --openapi ingest > docs/ingest-openapi.json

bench: bench-ledger bench-latency bench-purge bench-neighbours bench-gateway bench-ingest ## Run every benchmark

# Benchmarks share the servers of the tests.
bench-%: export PYTHONPATH := tests

bench-ledger: setup ## Claim and complete against PgQueuer and procrastinate
	@$(BIN)/python bench/ledger.py

bench-latency: setup ## The synchronous purge against an empty Dag and a cold spark-submit
	@$(BIN)/python bench/latency.py

bench-purge: setup ## Purges of 100,000 and a million files against Iceberg's own action
	@$(BIN)/python bench/purge.py

bench-neighbours: setup ## What it costs a purge to spare the files of 10,000 other tables
	@$(BIN)/python bench/neighbours.py

bench-gateway: setup ## The gateway against a plain proxy and the catalog itself
	@$(BIN)/python bench/gateway.py

bench-ingest: setup ## Ingest against Spark's own JSON reader, pyiceberg and ready Parquet
	@$(BIN)/python bench/ingest.py

lock: $(READY) ## Update requirements.lock
	@$(BIN)/uv pip compile requirements-dev.txt -o requirements.lock --python-version 3.11 --no-header --annotation-style line --quiet

clean: ## Remove the virtual environment and the stack's data
	@if [ -x $(BIN)/moraine ]; then $(BIN)/moraine down; fi
	rm -rf $(VENV) .moraine
