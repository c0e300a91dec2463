# Everything runs through $(VENV), whatever shell or environment is active.
PYTHON ?= python3
# The interpreter's pins; `CONSTRAINTS=/dev/null` installs the newest versions that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# Further arguments for `train` (appo-learner) and `test`, `test-slow` (pytest).
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
UNILAB := $(VENV)/unilab
NEWEST := $(VENV)/newest
CODE := common collector learner tests $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help install install-dev train test test-slow test-unilab lint format constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## Create .venv and install the project, with Gymnasium

install-dev: $(DEV) ## The same with the development tools, and all that the tests need

# torch goes first and alone: the build that the machine's pip settings prefer (CPU, a CUDA version)
# then satisfies every package that asks for torch, and no other build is downloaded on the way.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c $(CONSTRAINTS) torch
	$(BIN)/pip install -c $(CONSTRAINTS) -e '.[gymnasium]'
	@touch $@

# EnvPool's assets alone are several hundred megabytes.
$(DEV): $(STAMP)
	$(BIN)/pip install -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

train: $(STAMP) ## Train cartpole-swingup with a learner and two collectors
	$(BIN)/appo-learner cartpole-swingup --local-collectors 2 $(ARGS)

test: lint ## Lint, type-check and run the quick tests
	$(BIN)/pytest -m "not slow" $(ARGS)

test-slow: $(DEV) ## Run the tests that take minutes
	$(BIN)/pytest -m slow $(ARGS)

# UniLab is linked against MuJoCo 3.11, so it has an environment of its own, for which pins are replaced.
$(UNILAB)/.installed: $(STAMP) constraints-unilab.txt
	$(PYTHON) -m venv $(UNILAB)
	awk -F== 'NR == FNR { own[$$1] } NR == FNR || !($$1 in own)' constraints-unilab.txt $(CONSTRAINTS) > $(UNILAB)/pins
	$(UNILAB)/bin/pip install -c $(UNILAB)/pins torch
	$(UNILAB)/bin/pip install -c $(UNILAB)/pins -e '.[unilab]' pytest pytest-timeout
	@touch $@

test-unilab: $(UNILAB)/.installed ## Run UniLab's tests, and those of the physics, with its MuJoCo 3.11
	$(UNILAB)/bin/pytest tests/test_unilab_env.py tests/test_unilab_tasks.py tests/test_mujoco_physics.py tests/test_mujoco_task.py $(ARGS)

lint: $(DEV) ## Check style, format and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: $(DEV) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# The packages of a CUDA build (nvidia-*, triton, ...) are left out: torch itself pins them.
constraints: ## Rewrite constraints.txt with the newest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/pip install torch
	$(NEWEST)/bin/pip install -e '.[dev]'
	{ grep '^#' constraints.txt; $(NEWEST)/bin/pip freeze --exclude-editable \
	  | sed -E '/^(nvidia-|cuda-|triton)/d; s/\+[a-z0-9.]*$$//'; } > $(NEWEST)/pins
	mv $(NEWEST)/pins constraints.txt
	rm -rf $(NEWEST)

clean: ## Remove .venv, caches and built packages; runs/ stays
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +
