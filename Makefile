# `make repro` sets everything up and builds; `make test` runs the tests. Both can be interrupted and started again.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
# The environment's tools come first for everything that DVC starts.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Two processes, each with whole test files in the order of tests/conftest.py; a process takes up to 2 GB.
PARALLEL ?= --numprocesses 2 --dist loadfile --no-loadscope-reorder
READY := $(VENV)/.installed
DEV_READY := $(VENV)/.installed-dev
DOCS_READY := $(VENV)/.installed-docs

.PHONY: repro test test-fast test-all lint docs ui report benchmark mutation clean help

repro: $(READY)  ## set up, build what params.yaml says, show the metrics
	lowerdeck repro
	lowerdeck report

test: $(DEV_READY)  ## lint, types, import contracts and the tests that take seconds
	ruff check .
	codespell
	mypy
	lint-imports --no-cache
	pytest -m "not slow" $(PARALLEL)

test-fast: $(DEV_READY)  ## ruff, and the tests that neither lower models nor start other programs
	ruff check .
	pytest -m "not slow and not heavy" --numprocesses 2 --dist worksteal

test-all: $(DEV_READY)  ## all tests, also those that take minutes
	pytest $(PARALLEL)

lint: $(DEV_READY)  ## lint, spelling, types and import contracts
	ruff check .
	codespell
	mypy
	lint-imports --no-cache

docs: $(DOCS_READY)  ## the site of docs/ in site/, which opens from disk; dead links are errors
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build

ui: $(READY)  ## MLflow on the runs that were tracked
	lowerdeck ui

report: $(READY)  ## the metrics of the last build again
	lowerdeck report

benchmark: $(READY)  ## cold builds against one process that makes the same calls (half an hour)
	python -m benchmarks.cold_build

MODULE ?= *
mutation: $(DEV_READY)  ## faults in the core's modules against their tests (an hour; MODULE='comparison/*' for some)
	python -m pip install --quiet --no-build-isolation --editable '.[mutation]'
	python -m benchmarks.mutation --module '$(MODULE)' $(MUTATION_OPTIONS)

clean:  ## remove build/; recorded runs, sweeps and DVC's cache stay (`lowerdeck clean` is for these)
	rm -rf build/* .pytest_cache .mypy_cache .ruff_cache

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# The stamps are written last: an interrupted installation is taken up again.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(READY): requirements.lock pyproject.toml | $(VENV)/bin/python
	python -m pip install --quiet -r requirements.lock
	python -m pip install --quiet --no-deps --no-build-isolation --editable .
	lowerdeck plots-template
	@touch $@

$(DEV_READY): requirements-dev.lock $(READY)
	python -m pip install --quiet -r requirements-dev.lock
	@touch $@

$(DOCS_READY): pyproject.toml $(READY)
	python -m pip install --quiet --no-build-isolation --editable '.[docs]'
	@touch $@
