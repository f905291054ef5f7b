"""Runs in every vLLM worker process (`--worker-extension-cls`): loads published weights into the running model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlctl.wire.published import ADAPTER, read_base


class PublishedWeights:
    """Mixed into vLLM's worker class; `collective_rpc` calls its methods by name."""

    vllm_config: Any
    model_runner: Any

    def load_published(self, folder: str) -> None:
        """Replace every weight of the model by those published in `folder`; adapters are merged on the model's device.

        Layer by layer, as vLLM's own reload does: layers whose weights were repacked after loading (all linear layers
        on CPU, quantized ones on GPU) refuse new weights otherwise. Raises when the file leaves a parameter without
        weights.
        """
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.get_model()
        device = next(model.parameters()).device
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            loaded = model.load_weights(_tensors(Path(folder), device))
            finalize_layerwise_reload(model, self.vllm_config.model_config)
            _repack_tied(model)
        if loaded is not None and (missing := sorted(expected - loaded)):
            raise ValueError(f"{folder} has no weights for {', '.join(missing[:5])} ({len(missing)} parameters)")


def _repack_tied(model: Any) -> None:
    """Let an output layer that shares its weights with the input embedding take them over again.

    On CPU it computes with a packed copy made when the model was first loaded. Tied weights are loaded through the
    embedding only, so vLLM 0.32's reload leaves that copy as it was: logits of the old output layer over the new model.
    Elsewhere there is no copy and this does nothing.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and isinstance(layer.quant_method, UnquantizedEmbeddingMethod):
            layer.quant_method.process_weights_after_loading(layer)


def _tensors(folder: Path, device: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of every weight, one at a time."""
    from rlctl.models.adapters import merged, read, stored

    if (folder / ADAPTER).exists():
        return merged(read(folder), read_base(folder), device)
    return stored(folder)
