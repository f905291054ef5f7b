"""How much work training is: floating-point operations and memory."""

from collections.abc import Sequence

import torch

from rlctl.telemetry.memory import peak_resident_mb
from rlctl.train.data.samples import TrainSample
from rlctl.train.model.policy import Policy


def flops(lengths: Sequence[int], parameters: int, trained: int, layers: int, width: int) -> float:
    """Operations of one forward and backward pass over sequences of these lengths.

    `(4 P + 2 P') T + 6 L W sum_i T_i^2`: two per weight and token forward, two backward for what is before it, and two
    for its own gradient if it is one of the P' `trained` ones (not frozen under adapters); the causal half of the
    attention scores and their weighted sum, `2 L W T_i^2` forward. `parameters` P: without the input embedding.
    Recomputation (checkpointing) is no work. Source: PaLM, arXiv 2204.02311, appendix B (which counts the whole square
    and trains every weight).
    """
    square = float(sum(n * n for n in lengths))
    return (4.0 * parameters + 2.0 * trained) * sum(lengths) + 6.0 * layers * width * square


def flops_of(samples: Sequence[TrainSample], policy: Policy, epochs: int) -> float:
    """Of all passes of one training step, shared prefixes as often as they occur."""
    config = policy.lm.config.get_text_config()
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    return epochs * flops([len(s) for s in samples], *policy.size, config.num_hidden_layers, width)


def peak_memory_mb() -> float:
    """Of this process since its start: on the GPU where there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return peak_resident_mb()
