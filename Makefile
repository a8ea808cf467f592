# Two commands: `make demo` and `make test`. Both set themselves up into .venv.
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
# Some images set it; then each of hundreds of programs compiles this library anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
ARGS ?=
# One of the versions in .ci/spark-versions. Its environment is below the user's cache, and doesn't have this project.
SPARK ?= 4.0
ON_SPARK = python=$$($(PYTHON) .ci/environments.py $(SPARK)) && PYTHONPATH=$(CURDIR) $$python
NEEDS_PYTHON = @test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none is on PATH: install python3.11 and its venv module, or run make PYTHON=/path/to/python"; exit 1; }
# Ctrl-C is how these are ended: the shell waits for the program, and make says nothing of its status 130.
UNTIL_CTRL_C := trap : INT;
SPARK_TESTS := tests/spark tests/storm/turns tests/model_based/test_random_pipelines.py
SMOKE := tests/docs/test_readme.py::test_documented_pipeline_runs_with_the_shown_result \
  tests/spark/streaming/test_restarts.py::test_driver_error_is_recovered_by_the_next_start \
  "tests/spark/applications/test_over_connect.py::test_pipeline_runs_over_connect[README.md]"
ENDED := || { status=$$?; [ $$status -eq 130 ] || exit $$status; }

.PHONY: help setup demo logs stream storm kafka stack test unsteady needs test-spark test-connect smoke matrix docs lint check fmt api wheel bench chaos clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install everything into .venv (other targets do this automatically)

$(STAMP): pyproject.toml constraints.txt
	$(NEEDS_PYTHON)
	@sh .ci/set-up $(PYTHON) $(VENV)
	@touch $@

demo: $(STAMP) ## run the word count and direct acks on Spark, with a rotator; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m spark.applications.demo $(ARGS) $(ENDED)

logs: $(STAMP) ## run the access-log pipeline, killed halfway and restarted; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m spark.applications.access_logs.demo $(ARGS) $(ENDED)

stream: $(STAMP) ## run a stream of orders with poison and killed workers until Ctrl-C; run again to resume; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m spark.applications.order_stream.demo $(ARGS) $(ENDED)

storm: $(STAMP) ## run two topologies on Spark, with failing sentences and a killed worker, and account for every message; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m spark.applications.sentences.demo $(ARGS) $(ENDED)

kafka: $(STAMP) ## run two drivers on a real Kafka, one of which is killed, and account for every record; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m spark.applications.kafka_words.demo $(ARGS) $(ENDED)

stack: $(STAMP) ## run the services of docker-compose.yml as plain processes until Ctrl-C; ARGS="--help" lists options
	@$(UNTIL_CTRL_C) $(BIN)/python -m stack $(ARGS) $(ENDED)

# FAILURES names a file for the failed tests and their reasons, which .ci/gate.py reads.
PYTEST := -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(if $(FAILURES),--failures=$(FAILURES))
test: $(STAMP) ## run all tests, in four processes; ARGS="-k name" selects
	$(BIN)/python $(PYTEST) $(ARGS)

unsteady: $(STAMP) ## run one test many times beside two busy loops, until it fails; TEST=tests/... TIMES=50
	@$(UNTIL_CTRL_C) .ci/unsteady $(BIN)/python "$(TEST)" $(TIMES) $(ENDED)

needs: $(STAMP) ## name programs, packages and jars that the tests need and this machine lacks; downloads jars
	@$(BIN)/python -m tests.support.needs

smoke: ## run the README's pipeline, a stream with a restart and a run over Spark Connect on the oldest Spark
	$(ON_SPARK) -m pytest -n0 -m "" $(if $(FAILURES),--failures=$(FAILURES)) $(SMOKE) $(ARGS)

test-spark: ## run the tests that start Spark on SPARK=4.0; ARGS="-m versions" selects
	$(ON_SPARK) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(SPARK_TESTS) \
	  tests/docs/test_docs.py tests/docs/test_readme.py $(ARGS)

test-connect: ## run the tests of the Spark session over Spark Connect, on SPARK=4.0; ARGS="-k name" selects
	ACKER_CLIENT_PYTHON=$$($(PYTHON) .ci/environments.py $(SPARK) connect) && export ACKER_CLIENT_PYTHON && $(ON_SPARK) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --connect -m "not chaos" $(SPARK_TESTS) $(ARGS)

matrix: $(STAMP) ## run the tests on each version of Spark, over Spark Connect, and with real sinks; ONLY=4.0-connect selects
	@$(UNTIL_CTRL_C) $(PYTHON) .ci/matrix.py $(ONLY) $(ENDED)

docs: $(STAMP) ## build the docs site in build/site, offline; warnings and dead links are errors
	@$(BIN)/python -m docsite
	@rm -rf build/site
	@$(BIN)/zensical build --strict --clean -f mkdocs.yml

lint: $(STAMP) ## check format, lint, types, prose, and the docs site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m docsite.prose
	$(MAKE) docs

check: lint test ## run lint, then all tests; what CI runs besides is in .ci/gate.py

fmt: $(STAMP) ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

api: $(STAMP) ## write the public names and their parameters to tests/data/api.txt
	@$(BIN)/python -m tests.support.api

wheel: $(STAMP) ## build the wheel, and run the demo from it in a clean environment of each installed Python
	@.ci/wheel

bench: $(STAMP) ## measure and plot speed and memory, as ratios within one run; ARGS="ledger" selects
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(STAMP) ## run long fault-injection tests
	$(BIN)/python -m pytest -m chaos tests $(ARGS)

clean: ## remove .venv, caches and the docs site
	rm -rf $(VENV) build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
