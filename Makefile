# `make` shows what there is. PYTHON=python3.12 make train picks the interpreter that .venv is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

# No display is needed, and the type checker does not look for newer versions of itself.
export SDL_VIDEODRIVER ?= dummy
export SDL_AUDIODRIVER ?= dummy
export PYGAME_HIDE_SUPPORT_PROMPT ?= 1
export MPLBACKEND ?= Agg
export PYRIGHT_PYTHON_IGNORE_WARNINGS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export NO_MKDOCS_2_WARNING ?= 1

.DEFAULT_GOAL := help
.PHONY: help install train test test-learning test-faults check format stubs docs bench bench-peers clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## set up .venv with the package, editable, and its tested dependencies

# Made again when the dependencies change. The stamp comes last, so that a broken set-up is not taken for a finished one.
$(STAMP): pyproject.toml constraints.txt
	@echo "==> $(VENV): made with $$($(PYTHON) --version) ($(PYTHON))"
	$(PYTHON) -m venv $(VENV)
	@echo "==> $(VENV): installing catalog-rl[dev] and the versions in constraints.txt (2.1 GB with the CPU build of PyTorch, 5.6 GB with the one that pip takes on Linux)"
	$(BIN)/python -m pip install -e '.[dev]' -c constraints.txt
	@touch $@

train: $(STAMP) ## train PPO on CartPole until it is solved: the first thing to try
	$(BIN)/rlmodule train ppo CartPole-v1 --num-env-steps 200000 --target-return 475 --evaluation-interval 5 --seed 1

test: $(STAMP) ## the tests, but for the slow ones
	$(PYTEST) -m "not slow and not faults" -n 2

test-learning: $(STAMP) ## the slow tests: every algorithm learns
	$(PYTEST) -m slow

test-faults: $(STAMP) ## the long fault tests: processes that are killed, stopped and lost
	$(PYTEST) -m faults

check: $(STAMP) ## everything a change must pass: format, lint, stubs, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m algorithms.stubs --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST) -m "not slow and not faults" -n 2

format: $(STAMP) ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

stubs: $(STAMP) ## write the type stubs of the config builders anew
	$(BIN)/python -m algorithms.stubs

docs: $(STAMP) ## build the documentation as a site: site/index.html
	$(BIN)/mkdocs build --strict

bench: $(STAMP) ## our speed beside bare PyTorch loops, in one run
	$(BIN)/python -m benchmarks.run

bench-peers: $(STAMP) ## our speed beside other libraries, each in an environment of its own (.peers)
	$(BIN)/python -m benchmarks.peers.run

clean: ## remove .venv and everything built
	rm -rf $(VENV) .peers build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
