# `make demo` and `make test` need nothing but make and a Python of at least 3.11: they make `.venv`,
# install the package into it, and run. The install is redone when pyproject.toml changes.

# The first of these that runs and is new enough; PYTHON=... on the command line overrules.
new_enough = "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$(new_enough) && echo $$p && break; done)

VENV ?= .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-run
TEST_STAMP := $(VENV)/.installed-test
PEERS_STAMP := $(VENV)/.installed-peers
WORKERS ?= 2
PYTEST_ARGS ?=
SITE ?= site
BENCH_OUT ?= benchmarks/results.jsonl
SOAK_PROGRAMS ?= 5000
SOAK_TRIALS ?= 50
MATRIX_ARGS ?=

.PHONY: help demo test test-full soak peers browser lint docs format bench test-matrix wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         sample a hierarchical model with a thousand chains, and write a report"
	@echo "make test         lint, types, import layers, the docs and the tests"
	@echo "make test-full    the same with every test: each schedule at each size, more random programs"
	@echo "make soak         processes killed and stopped SOAK_TRIALS=$(SOAK_TRIALS) times, then fresh random programs"
	@echo "                  until one fails or SOAK_PROGRAMS=$(SOAK_PROGRAMS) have passed"
	@echo "make peers        install the benchmarks' peers (PyTorch, Numba), which some tests compare with"
	@echo "make browser      install Chromium, which the tests of the report use (Debian, as root)"
	@echo "make lint         ruff, pyright and import-linter only"
	@echo "make docs         build the documentation site in $(SITE)"
	@echo "make format       let ruff rewrite the sources"
	@echo "make bench        every benchmark; the claims are gathered in $(BENCH_OUT)"
	@echo "make test-matrix  the tests under the other Python/JAX pairs found here"
	@echo "make wheel        build a wheel, and run what a user runs first from it, without the checkout"
	@echo "make clean        remove what these commands made"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq -e '.[demo]'
	@touch $@

$(TEST_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq -e '.[test]'
	@touch $@ $(RUN_STAMP)

$(PEERS_STAMP): pyproject.toml | $(TEST_STAMP)
	$(BIN)/python -m pip install -qq -e '.[test,bench]'
	@touch $@

demo: $(RUN_STAMP)
	$(BIN)/lanewise demo

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a link that leads nowhere, or a page that loads something from the network, is an error.
docs: $(TEST_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(SITE)

# What is written and what is typed are checked side by side.
test: $(TEST_STAMP)
	$(MAKE) -j2 --output-sync lint docs
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-full: peers
	LANEWISE_FULL=1 $(MAKE) test

soak: $(TEST_STAMP)
	LANEWISE_TRIALS=$(SOAK_TRIALS) LANEWISE_FULL=1 $(BIN)/python -m pytest -x tests/place/test_faults.py \
		tests/place/test_transports.py tests/place/test_places.py $(PYTEST_ARGS)
	LANEWISE_RANDOM=1 LANEWISE_PROGRAMS=$(SOAK_PROGRAMS) LANEWISE_FULL=1 \
		$(BIN)/python -m pytest -n $(WORKERS) -x tests/test_generated.py $(PYTEST_ARGS)
	LANEWISE_TRIALS=20 $(BIN)/python -m pytest -x tests/mcmc/test_interrupted.py $(PYTEST_ARGS)
	LANEWISE_KILLS=50 LANEWISE_FULL=1 $(BIN)/python -m pytest -x tests/place/test_by_ray.py -k random_points

peers: $(PEERS_STAMP)

# Debian's packages; elsewhere install Chromium and chromedriver by hand.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; }

# Every benchmark runs, also after one that failed; the exit status shows whether all did run. A claim
# that misses its target is shown as such and is no failure.
bench: $(TEST_STAMP)
	$(BIN)/lanewise bench --all --out $(BENCH_OUT)

test-matrix: | $(BIN)/python
	$(BIN)/python tests/matrix.py $(MATRIX_ARGS)

wheel: | $(BIN)/python
	$(BIN)/python tests/wheel.py

clean:
	rm -rf $(VENV) .venv-* build dist $(SITE) .pytest_cache .ruff_cache .import_linter_cache .hypothesis $(BENCH_OUT)
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
