# Everything runs in .venv with the versions of constraints.txt; a stamp file says what is already installed there.
PYTHON ?= python3
WORKERS ?= 2
BUDGET ?= 5m
FUZZ_MINUTES ?= 60
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SMOKE := $(abspath tests/roads/smoke.sh)

.PHONY: help quickstart test test-slow checks wheel-test fuzz benchmarks gpu clean
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   install, then raw text -> corpus -> pretraining -> fine-tuning -> report, in minutes (BUDGET=$(BUDGET))"
	@echo "make test         install, then run the tests (WORKERS=$(WORKERS))"
	@echo "make test-slow    run the slow ones: more processes, servers, families and heads"
	@echo "make checks       ruff and mypy"
	@echo "make wheel-test   build the wheel and use it in a clean environment, away from the sources"
	@echo "make fuzz         random trials of every verb, file and run for FUZZ_MINUTES=$(FUZZ_MINUTES); prints counts and findings"
	@echo "make benchmarks   reproduce the tables of docs/performance.md, on CORPUS=DIR where given (hours)"
	@echo "make gpu          prove and time everything on a GPU, into runs/gpu (see benchmarks/gpu.sh)"
	@echo "make clean        remove the environment, builds and caches"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "encoderlab needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed-core: $(VENV)/bin/python constraints.txt pyproject.toml
	@echo "installing encoderlab and its requirements into $(VENV) (once)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed-core
	@echo "installing what the tests need into $(VENV) (once)"
	$(INSTALL) --editable '.[dev,spm,zh,data,hf,track,export,serve,tune,scale]'
	@touch $@

quickstart: $(VENV)/installed-core
	$(BIN)/encoderlab quickstart --budget $(BUDGET) --out runs/quickstart

test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(PYTEST_ARGS)

checks: $(VENV)/installed-dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/mypy src benchmarks

wheel-test: $(VENV)/installed-dev
	@set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; \
	$(BIN)/python -m build --no-isolation --outdir "$$place/dist" . >"$$place/build.log" || { cat "$$place/build.log"; exit 1; }; \
	$(PYTHON) -m venv "$$place/venv"; \
	"$$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$place"/dist/*.whl; \
	cp "$(SMOKE)" "$$place/smoke.sh"; \
	cd "$$place" && PATH="$$place/venv/bin:$$PATH" PYTHONSAFEPATH=1 bash smoke.sh "$$place/work"

fuzz: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES)

benchmarks: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(if $(CORPUS),--corpus $(CORPUS))

gpu: $(VENV)/installed-dev
	PYTHON=$(abspath $(BIN)/python) bash benchmarks/gpu.sh

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
