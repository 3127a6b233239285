# Everything sets itself up: a virtual environment in .venv, then the command. Only Python ≥ 3.10 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo docs test test-all lint format clean
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

setup: $(STAMP)  ## Create .venv and install the package with its development tools

ABLATED := model.thalamus=false model.memory=false

demo: $(STAMP)  ## Four models through three tasks, about five minutes: TRC², backbone only, backbone + replay, large share of replay
	rm -rf runs/demo
	$(BIN)/trc2 train demo output.folder=runs/demo/trc2
	$(BIN)/trc2 train demo output.folder=runs/demo/plain $(ABLATED) model.replay=false
	$(BIN)/trc2 train demo output.folder=runs/demo/plain_replay $(ABLATED)
	$(BIN)/trc2 train demo_large_share output.folder=runs/demo/large_share
	$(BIN)/trc2 report runs/demo/trc2 runs/demo/plain runs/demo/plain_replay runs/demo/large_share --out runs/demo

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs  ## The documentation as a site, into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html, or read along while you write: $(BIN)/mkdocs serve"

lint: $(STAMP)  ## ruff (lint and format), mypy, and the prose check of the documentation
	$(BIN)/python docs/prose.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Lint, then every test that is not slow
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

$(VENV)/.clients: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[clients]"
	@touch $@

test-all: lint $(VENV)/.clients  ## Lint, then every test; ARGS="-k 'not hundred_thousand'" leaves out the long fuzz
	$(BIN)/python -m pytest -m "" --numprocesses auto --dist worksteal $(ARGS)

format: $(STAMP)  ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove .venv, caches and builds
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
