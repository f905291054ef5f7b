"""The trained model: loading, LoRA, activation checkpointing; log-probabilities of micro-batches."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.models.load import load_policy
from rlctl.train.data.batches import MicroBatch
from rlctl.train.data.columns import Columns
from rlctl.train.model.adapters import lora, quantized
from rlctl.train.model.blocks import checkpoint_blocks, compile_blocks
from rlctl.train.model.kernels import use_liger
from rlctl.train.model.logits import score
from rlctl.train.model.sequence import Spread, spread_of, use_exchange
from rlctl.train.model.sharding import shard
from rlctl.train.model.stages import Stage, cut, entering, stage_of
from rlctl.train.model.tree_models import use_trees, why_not
from rlctl.train.objective.divergence import full
from rlctl.train.objective.tokens import Tokens
from rlctl.train.ranks import Ranks

LOGITS = "logits"
"""Asks `Policy.forward`, inside of which sharded weights are whole, for logits `[n, V]` instead of scores: those of
this rank's columns, which are all without sequence parallelism."""
ALONE, WHOLE = Spread(), Stage()


class Scores(NamedTuple):
    """Of every trainable token of a micro-batch, float32 `[N]`."""

    logprobs: torch.Tensor
    entropies: torch.Tensor
    """Zeros where they were not asked for."""
    divergence: torch.Tensor | None = None
    """Exact KL(policy || reference), where the reference's logits were given."""


class Size(NamedTuple):
    """Parameters that a token is multiplied with: without an embedding that is no output layer."""

    parameters: int
    trained: int
    """Those of them that are not frozen."""


class Policy(nn.Module):
    """A causal language model that answers with log-probabilities and entropies of the trainable tokens.

    The logits of other positions are never computed: a hook hands the output layer only the rows that predict
    trainable tokens, so whatever the model does after that layer (scaling, soft-capping) still happens. With `chunk`
    the hook keeps those rows, and their logits are made `chunk` rows at a time, in the backward pass anew: then the
    logits of a micro-batch are never whole in memory.
    """

    def __init__(self, lm: Any, chunk: int = 0, spread: Spread = ALONE, stage: Stage = WHOLE) -> None:
        super().__init__()
        self.lm = lm
        self.chunk = chunk
        self.spread = spread
        self.stage = stage
        self.size = _size(lm)
        """Of all stages."""
        self._sources: torch.Tensor | None = None
        self._states: torch.Tensor | None = None
        lm.get_output_embeddings().register_forward_pre_hook(self._keep_sources)

    def _keep_sources(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._sources is None:
            return None
        rows = args[0].flatten(0, 1)[self._sources]
        if self.chunk:
            self._states, rows = rows, rows[:1]
        return (rows[None],)

    def forward(
        self,
        micro: MicroBatch,
        with_entropy: str = "value",
        reference: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
    ) -> Scores | torch.Tensor:
        """`with_entropy`: "" (zeros) | "value" | "grad". `reference`: logits `[N, V]` of the model to compare with.

        `states [B, S, D]`: of the stage before. On a stage that is not the last: states for the next one.
        """
        share = self.spread.of(micro)
        if not self.stage.last:
            found: torch.Tensor = self.lm.base_model(**self._inputs(share, states)).last_hidden_state
            return found
        if with_entropy == LOGITS:
            return self.logits(share, states)
        scores = self._scores(share, with_entropy, reference, states)
        if self.spread.alone:
            return scores
        known = torch.stack([x for x in scores if x is not None], 1)
        # Copies: FSDP's hooks on the output do not bear views.
        return Scores(*(x.clone() for x in self.spread.together(known, share, len(micro.targets)).unbind(1)))

    def _inputs(self, share: Columns, states: torch.Tensor | None) -> dict[str, Any]:
        device = next(self.lm.parameters()).device
        return entering(self.spread.inputs(share, self.lm.config, device), states)

    def _scores(
        self, share: Columns, with_entropy: str, reference: torch.Tensor | None, before: torch.Tensor | None
    ) -> Scores:
        """Of the tokens that this rank's columns predict."""
        device = next(self.lm.parameters()).device
        targets, temperatures = _take(share.micro.targets, device), _take(share.micro.temperatures, device)
        logits = self.logits(share, before)
        states, self._states = self._states, None
        if states is None:
            return _scores(logits, targets, temperatures, with_entropy, reference)
        parts = []
        for start in range(0, max(1, len(states)), self.chunk):
            part = slice(start, start + self.chunk)
            against = None if reference is None else reference[part]
            parts.append(
                checkpoint(
                    self._of_states,
                    states[part],
                    targets[part],
                    temperatures[part],
                    with_entropy,
                    against,
                    use_reentrant=False,
                )
            )
        logprobs, entropies = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        divergences = [part.divergence for part in parts if part.divergence is not None]
        return Scores(logprobs, entropies, torch.cat(divergences) if divergences else None)

    def logits(self, share: Columns, states: torch.Tensor | None = None) -> torch.Tensor:
        """`[n, V]`; only the first row when they are made in chunks."""
        device = next(self.lm.parameters()).device
        self._sources = _take(share.micro.sources, device)
        try:
            output = self.lm(**self._inputs(share, states))
        finally:
            self._sources = None
        return output.logits[0]

    def _of_states(self, states: torch.Tensor, *rest: Any) -> Scores:
        return _scores(self.lm.get_output_embeddings()(states), *rest)


def _size(lm: Any) -> Size:
    embedding = lm.get_input_embeddings().weight
    apart = lm.get_output_embeddings().weight is not embedding
    used = [weight for weight in lm.parameters() if not (apart and weight is embedding)]
    trained = [weight for weight in used if weight.requires_grad]
    return Size(sum(map(quantized.numbers, used)), sum(map(quantized.numbers, trained)))


def _take(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def _scores(
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor,
    with_entropy: str,
    reference: torch.Tensor | None,
) -> Scores:
    logprobs, entropies = score(logits, targets, temperatures, with_entropy)
    divergence = None
    if reference is not None:
        ours, theirs = ((z.float() / temperatures[:, None]).log_softmax(1) for z in (logits, reference))
        divergence = full(ours, theirs)
    return Scores(logprobs, entropies, divergence)


def tokens_of(micro: MicroBatch, device: torch.device) -> Tokens:
    """The loss's view of a micro-batch."""
    return Tokens(
        _take(micro.behaviour, device),
        _take(micro.advantages, device),
        _take(micro.weights, device),
        _take(micro.sequences, device),
        {name: _take(values, device) for name, values in micro.columns.items()},
    )


def load(path: str, config: Config, ranks: Ranks) -> Policy:
    """The model in `path`, ready to train: float32 master weights, computing in `model.dtype`.

    ConfigError if it cannot be read.
    """
    policy = _policy(path, config, ranks, config.train.lora.quantize)
    if policy.chunk:
        _check_head(policy.lm)
    if config.train.lora.rank:
        lora.add(policy.lm, config.train.lora)
        policy.size = _size(policy.lm)
    checkpoint_blocks(policy.lm, config.train.memory)
    policy.train()
    prepare(policy, config, ranks)
    return policy


def load_frozen(path: str, config: Config, ranks: Ranks) -> Policy:
    """A model that only answers: a reference or a teacher."""
    policy = _policy(path, config, ranks)
    policy.requires_grad_(False)
    prepare(policy, config, ranks)
    return policy


def _policy(path: str, config: Config, ranks: Ranks, quantize: str = "") -> Policy:
    lm = load_lm(path, config, ranks, quantize)
    return Policy(lm, config.train.memory.logit_chunk, spread_of(config, ranks), stage_of(config, ranks))


def load_lm(path: str, config: Config, ranks: Ranks, quantize: str = "") -> Any:
    """The float32 causal language model in `path`, whole, ready for forests where they are wanted.

    `quantize`: its linear layers in 4 bits (see `quantized`).
    """
    model = config.model
    # Under `cpu_offload` sharding brings block by block to the GPU and its part back: never the whole model at once.
    # Nor is it there where this rank keeps a stage of it (see `prepare`).
    apart = config.train.fsdp.cpu_offload or ranks.layout.pipeline > 1
    device = torch.device("cpu") if apart else ranks.device
    four_bits = quantized.settings(quantize, model.dtype) if quantize else None
    lm = load_policy(path, "float32", model.attention, model.trust_remote_code, model.revision, device, four_bits)
    use_liger(lm, config.train.liger, ranks.device, ranks.layout.tensor)
    if config.train.prefix_tree and not why_not(lm.config):
        use_trees(lm)
    if ranks.layout.sequence > 1:
        use_exchange(lm, model.attention, config.train.parallel)
    return lm


def prepare(module: Any, config: Config, ranks: Ranks) -> None:
    """No dropout, cut to its stage, compiled and sharded; `module.lm` is the transformer whose blocks are the units."""
    _without_dropout(module)
    if not module.stage.alone:
        cut(module)
        module.to(ranks.device)
    if config.train.compile:
        compile_blocks(module.lm, ranks.device)
    shard(module, config, ranks)


def _check_head(lm: Any) -> None:
    """Chunks are made by the output layer alone: a model that changes its logits afterwards is refused."""
    config = lm.config.get_text_config()
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, key, None) not in (None, 1, 1.0):
            raise ConfigError(f"train.memory.logit_chunk cannot be used with this model, which has {key}; set it to 0")


def _without_dropout(policy: nn.Module) -> None:
    """Training must compute the very distribution that the engine sampled from."""
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full value of a possibly sharded tensor (all ranks must call it)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def start_path(config: Config) -> str:
    """Where RL starts from: the warm start's model when there is one, else the configured model."""
    warm = config.run_dir / "sft" / "model"
    return str(warm) if (Path(warm) / "config.json").exists() else config.model_dir
