# make setup   make .venv as requirements.lock says (nothing to do when it is up to date)
# make compiled   compile the core with mypyc, if there is a C compiler (a part of `make setup`; BARNABAS_PURE_PYTHON=1 ignores it)
# make test    everything that must hold: lint, types, tests          (.ci/run calls exactly this)
# make test-fast   lint, types, unit and architecture tests, a sample of the simulation: before each commit
# make demo    the main job on real data: produce, kill a broker, consume, read into Spark
# make pipeline   a Spark query from topic to topic while a broker, an executor and the driver are killed (PIPELINE_ARGS=standalone)
# make chaos   a cluster under random faults, judged at the end (CHAOS_SECONDS=300, CHAOS_SEED=… to repeat, CHAOS_SECURED=1)
# make soak    unit tests in debug mode, clients at all features, hostile peers, 100,000 histories (FUZZ_SEED=…, SOAK_SEED=…)
# make flaky   process tests repeated under random load, with their rates (FLAKY_RUNS=20, FLAKY_TESTS='tests/chaos -k …')
# make mutants MODULE=broker/log   mutants of a module or folder against its unit tests (TESTS=…, CHOOSE=1, KEEP=…, SAMPLE=…)
# make spark-lanes   tests/spark under every PySpark that is supported (SPARK_VERSIONS='4.0.0 …')
# make bench   the figures in the README, measured here
# make bench-release   twelve costs of this tree beside the last release, in 90 s (BENCH_ARGS='--against HEAD')
# make bench-kafka   one load against Barnabas and Apache Kafka in turn (needs Java; BENCH_ARGS=--quick)
# make pictures | settings | loops     the pictures of README and docs/, from the live page in Chromium; the page of settings; compiled loops
# make replays   the recorded histories that the documentation and the live page show, from the simulation
# make dashboard   the Grafana dashboard, from the table in docs/make_dashboard.py
# make lint | format | lock | clean

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup compiled test rewritten test-fast lint format demo pipeline chaos soak spark-lanes flaky mutants bench bench-release \
	bench-kafka pictures settings loops dashboard replays lock clean

# The first interpreter that runs and is new enough; override with `make PYTHON=/path/to/python3.11 …`.
PYTHON ?= $(shell for found in python3.11 python3 python3.12 python3.13 python; do \
	"$$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$found" && break; done)
BIN := .venv/bin
STAMP := .venv/.set-up
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile
# Folders of packages that nothing here imports.
UNUSED := /(tests?|testing/tests|examples)/
# Each is a lane of its own: .venv-spark/VERSION, the locked packages but for PySpark.
SPARK_VERSIONS ?= 4.0.0 4.1.4 4.2.1 4.3.0
JOBS ?= auto
PYTEST_ARGS ?=
BENCH_ARGS ?=
PIPELINE_ARGS ?=

help:
	@sed -n 's/^# \(make.*\)/\1/p' Makefile

setup: $(STAMP)

# Nothing to do while no source has changed. Without a C compiler it says so, and all runs in pure Python.
compiled: setup
	@$(BIN)/python setup.py -q compiled_core

$(STAMP): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "make setup: no Python 3.11 or newer was found on the PATH" >&2; exit 1; fi
	@if ! $(BIN)/python -c '' 2>/dev/null; then \
		echo "setup: .venv with $$($(PYTHON) --version)"; rm -rf .venv; \
		$(PYTHON) -m venv .venv || { rm -rf .venv; \
			echo "make setup: $(PYTHON) cannot make a venv (on Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	fi
	@echo "setup: $$(grep -c == requirements.lock) locked packages (one or two minutes the first time)"
	@# PySpark has half of all bytes, and is built into a wheel first, so another process installs it meanwhile.
	@$(INSTALL) -q --no-deps -r <(grep '^pyspark==' requirements.lock) & \
		beside=$$!; trap "kill $$beside 2>/dev/null || true" EXIT; \
		$(INSTALL) -r <(grep -v '^pyspark==' requirements.lock) | sed -un 's/^Collecting \([^ ]*\).*/setup:   \1/p'; \
		wait $$beside
	@# pip would compile in one process, and the packages' own tests too.
	@$(BIN)/python -m compileall -q -j 0 -x '$(UNUSED)' .venv/lib
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input -q --no-build-isolation --no-deps -e .
	@$(BIN)/python setup.py -q compiled_core
	@touch $@ && echo "setup: done"

test: setup
	@$(MAKE) --no-print-directory -j 2 lint rewritten compiled
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

# Compiles the test modules with their asserts, which each worker would do in the first run of a clone. Beside
# the lint, because mypy has one process. A test module that cannot be imported fails `make test` again.
rewritten: setup
	@mkdir -p build && { $(BIN)/python -m pytest --collect-only -q $(PYTEST_ARGS) > build/rewritten.txt \
		|| { cat build/rewritten.txt; exit 1; }; }

test-fast: setup lint
	$(BIN)/python -m pytest -n $(JOBS) -m "not long" tests/unit tests/architecture tests/simulation $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# With --quiet it would not count the warnings that --strict makes errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup
	$(BIN)/barnabas demo

pipeline: setup
	$(BIN)/python examples/pipeline/run.py $(PIPELINE_ARGS)

chaos: setup
	CHAOS_SECONDS=$${CHAOS_SECONDS:-300} $(BIN)/python -m pytest -s -p no:rerunfailures \
		tests/chaos tests/compose tests/compat/test_streams.py tests/compat/test_features.py $(PYTEST_ARGS)

soak: setup
	ASYNCIO_DEBUG_LOOP=1 $(BIN)/python -m pytest -n $(JOBS) tests/unit
	COMPAT_FULL=1 $(BIN)/python -m pytest -n $(JOBS) tests/compat
	$(BIN)/python -m tests.cluster.wire_soak
	$(BIN)/python -m tests.cluster.wire_soak secured
	$(BIN)/python -m tests.simulation.soak

spark-lanes: $(SPARK_VERSIONS:%=.venv-spark/%/.set-up) setup
	$(BIN)/python -m tests.spark.lanes $(SPARK_VERSIONS) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

.venv-spark/%/.set-up: requirements.lock pyproject.toml
	@if ! $(@D)/bin/python -c '' 2>/dev/null; then rm -rf $(@D) && $(PYTHON) -m venv $(@D); fi
	@echo "setup: $(@D), the locked packages with PySpark $*"
	@$(@D)/bin/python -m pip install --disable-pip-version-check --no-input -q "pyspark[connect]==$*" \
		-r <(grep -v -e '^pyspark==' -e '^py4j==' requirements.lock)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --no-input -q --no-build-isolation --no-deps -e .
	@touch $@

flaky: setup
	$(BIN)/python -m tests.flaky

mutants: setup
	$(BIN)/python -m tests.mutants $(MODULE) $(if $(TESTS),--tests $(TESTS)) $(if $(CHOOSE),--choose) \
		$(if $(KEEP),--keep $(KEEP)) $(if $(SAMPLE),--sample $(SAMPLE)) $(MUTANTS_ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-release: setup
	$(BIN)/python -m benchmarks.against_release $(BENCH_ARGS)

bench-kafka: setup
	@$(BIN)/python -c 'import confluent_kafka' 2>/dev/null || $(BIN)/python -m pip install \
		--disable-pip-version-check --no-input -q --no-build-isolation -e '.[bench]'
	$(BIN)/python -m benchmarks.compare $(BENCH_ARGS)

pictures: setup
	$(BIN)/python docs/make_pictures.py

settings: setup
	$(BIN)/python docs/make_settings.py

# In pure Python: the replay stale-controller plants a mistake that compiled code would not call.
replays: setup
	BARNABAS_PURE_PYTHON=1 $(BIN)/python -m tests.simulation.replays

dashboard: setup
	$(BIN)/python docs/make_dashboard.py

loops: setup
	$(BIN)/python -m barnabas.spark_connector.columns.make_loops

lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --disable-pip-version-check -q 'setuptools>=77'
	.venv-lock/bin/pip install --disable-pip-version-check -q --no-build-isolation '.[dev]'
	{ sed -n '1{/^#/p}' requirements.lock; .venv-lock/bin/pip freeze --all --exclude pip --exclude barnabas; } \
		> requirements.lock.new && mv requirements.lock.new requirements.lock
	rm -rf .venv-lock build

clean:
	rm -rf .venv .venv-lock .venv-spark build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
