# `make` shows what there is. PYTHON=python3.12 make train picks the interpreter that .venv is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
# EnvPool and Brax bring two more gigabytes, which no other test needs.
SIMULATORS := .simulators
BATCHED := $(SIMULATORS)/.installed
# The first release of every minor version that pyproject.toml names.
PYTHONS := 3.10.0 3.11.0 3.12.0 3.13.0
# Python compiles a module when it is first imported. To compile all of them, most of which nothing imports, takes most of
# pip's CPU time.
INSTALL := $(BIN)/python -m pip install --no-compile
PYTEST := $(BIN)/python -m pytest
# On two processes, the one that is done first taking over half of what the other has left.
BOTH := $(PYTEST) -n 2 --dist worksteal
SUITE := $(BOTH) -m "not slow and not faults and not site and not end_to_end"
# Folders whose tests start no process and train nothing.
FAST := tests/catalog tests/rlmodule/data tests/rlmodule/modules tests/algorithms/ops tests/algorithms/settings

# No display is needed, and the type checker does not look for newer versions of itself.
export SDL_VIDEODRIVER ?= dummy
export SDL_AUDIODRIVER ?= dummy
export PYGAME_HIDE_SUPPORT_PROMPT ?= 1
export MPLBACKEND ?= Agg
export PYRIGHT_PYTHON_IGNORE_WARNINGS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export NO_MKDOCS_2_WARNING ?= 1

# The tests start some hundred processes, which would compile all modules anew if the shell says not to keep them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install train test test-fast test-end-to-end test-matrix test-learning test-export test-faults test-site check check-pins format docs release bench bench-peers tables clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(DEV) ## set up .venv with the package, editable, and all that is needed to work on it

# Redone when the dependencies change. A stamp is written last, so that a broken set-up never looks like a finished one.
$(CORE): pyproject.toml constraints.txt
	@echo "==> $(VENV): $$($(PYTHON) --version) ($(PYTHON)), with the versions in constraints.txt"
	$(PYTHON) -m venv $(VENV)
	@echo "==> $(VENV): installing what training needs (1.5 GB with the CPU build of PyTorch, 5.5 GB with the one that pip chooses on Linux)"
	$(INSTALL) -e . -c constraints.txt
	@touch $@

$(DEV): $(CORE)
	@echo "==> $(VENV): adding what the tests, the checks and the docs need (1 GB)"
	$(INSTALL) -e '.[dev]' -c constraints.txt
	@touch $@

$(BATCHED): pyproject.toml constraints.txt
	@echo "==> $(SIMULATORS): an environment with EnvPool and Brax"
	$(PYTHON) -m venv $(SIMULATORS)
	$(SIMULATORS)/bin/python -m pip install -e '.[batched]' brax==0.14.2 jax==0.10.2 pytest hypothesis -c constraints.txt
	@touch $@

train: $(CORE) ## train PPO on CartPole until it is solved: the first thing to try
	$(BIN)/rlmodule train ppo CartPole-v1 --num-env-steps 200000 --target-return 475 --evaluation-interval 5 --seed 1

test: $(DEV) ## the first stage of the tests, which finds most faults; a third of each feature matrix, in turn
	$(SUITE)

test-fast: $(DEV) ## the tests that start no process and train nothing, in a minute
	$(SUITE) $(FAST)

test-end-to-end: $(DEV) ## the second stage: learning runs, benchmarks, exports, pages, the rest of the matrices
	$(BOTH) -m "end_to_end and not slow and not faults and not site"

test-matrix: $(DEV) $(BATCHED) ## the feature matrices as a whole; batched envs of EnvPool and Brax, in .simulators
	$(BOTH) -m matrix
	$(SIMULATORS)/bin/python -m pytest tests/rlmodule/envs/test_batched.py

test-learning: $(DEV) ## the slow tests: every algorithm learns
	$(PYTEST) -m slow --ignore tests/deploy

test-export: $(DEV) ## exported and loaded policies against the runner: the whole feature matrix
	$(PYTEST) -m slow tests/deploy -n 2 --dist worksteal

test-faults: $(DEV) ## the long fault tests: processes that are killed, stopped and lost
	$(PYTEST) -m faults -n 2 --dist worksteal

test-site: $(DEV) ## the tests of the documentation as a site, which they build
	$(PYTEST) -m site tests/test_docs_site.py

check: $(DEV) check-pins ## everything a change must pass: pins, format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BOTH) -m "not slow and not faults and not site"

# uv reads what the index says of each package: it installs nothing, needs no other Python, and sees no local files of pip.
check-pins: $(DEV) ## whether constraints.txt holds on the first release of every supported Python
	@for version in $(PYTHONS); do \
		echo "==> constraints.txt on Python $$version"; \
		$(BIN)/uv pip compile --quiet --no-header --system-certs --no-build --no-python-downloads \
			--python-version $$version --extra dev -c constraints.txt pyproject.toml >/dev/null || exit 1; \
	done

format: $(DEV) ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) ## build the documentation as a site: site/index.html
	$(BIN)/mkdocs build --strict

# uv builds the wheel from the sdist, so both are complete if the wheel is.
release: $(DEV) ## build dist/*.tar.gz and dist/*.whl, check them, and train with the wheel outside the tree
	rm -rf dist build
	$(BIN)/uv build --quiet --system-certs --python $(BIN)/python
	$(BIN)/python tests/release.py dist/*.whl

bench: $(DEV) ## our speed beside bare PyTorch loops, in one run
	$(BIN)/python -m benchmarks.run

bench-peers: $(DEV) ## our speed beside other libraries, each in an environment of its own (.peers)
	$(BIN)/python -m benchmarks.peers.run

tables: $(DEV) ## the rows of our tables whose code has changed since they were measured, and how to measure them again
	$(BIN)/python -m benchmarks.tables

clean: ## remove .venv and everything built
	rm -rf $(VENV) $(SIMULATORS) .peers build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
