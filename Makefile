# Everything sets itself up: a virtual environment in .venv, then the command. Only Python ≥ 3.10 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test test-all lint format clean
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

setup: $(STAMP)  ## Create .venv and install the package with its development tools

demo: $(STAMP)  ## Verify the paper's compact network and print its budget beside the paper's
	$(BIN)/trc2 verify --out runs/demo
	$(BIN)/trc2 budget
	$(BIN)/trc2 budget --paper

lint: $(STAMP)  ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Lint, then every test that is not slow
	$(BIN)/python -m pytest

test-all: lint  ## Lint, then every test
	$(BIN)/python -m pytest -m ""

format: $(STAMP)  ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove .venv, caches and builds
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
