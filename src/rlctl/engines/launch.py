"""`rlctl engine`: which kind of engine runs here."""

import importlib.util

from rlctl.config import Config
from rlctl.errors import ConfigError


def resolve(config: Config) -> str:
    """`engine.kind` with auto resolved: vllm where a CUDA device and vLLM are, else embedded."""
    kind = config.engine.kind
    if kind != "auto":
        return kind
    if config.deploy.device == "cpu" or not (config.engine.vllm_python or importlib.util.find_spec("vllm")):
        return "embedded"
    import torch

    return "vllm" if torch.cuda.is_available() else "embedded"


def main(config: Config, index: int = 0) -> None:
    """Serve the policy at `config.engine.urls[index]`, by whichever engine is configured, until SIGTERM."""
    if config.engine.urls and index >= len(config.engine.urls):
        raise ConfigError(f"--index {index}: engine.urls has {len(config.engine.urls)} addresses")
    if resolve(config) == "vllm":
        from rlctl.engines.vllm.launch import exec_vllm

        exec_vllm(config, index)
    else:
        from rlctl.engines.embedded.server import main as serve

        serve(config, index)
