"""The trained model: loading, LoRA, activation checkpointing, sharding, export; log-probabilities of micro-batches."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.models.load import load_policy
from rlctl.train.batches import MicroBatch
from rlctl.train.losses import Tokens, entropy, token_logprobs
from rlctl.train.ranks import Ranks

ADAPTER = "default"


class Policy(nn.Module):
    """A causal language model that answers with log-probabilities and entropies of the trainable tokens.

    The logits of other positions are never computed: a hook hands the output layer only the rows that predict
    trainable tokens, so whatever the model does after that layer (scaling, soft-capping) still happens.
    """

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        self._sources: torch.Tensor | None = None
        lm.get_output_embeddings().register_forward_pre_hook(self._keep_sources)

    def _keep_sources(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._sources is None:
            return None
        return (args[0].flatten(0, 1)[self._sources][None],)

    def forward(self, micro: MicroBatch, with_entropy: str = "value") -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies, both float32 `[N]`. `with_entropy`: "" (zeros) | "value" | "grad"."""
        device = next(self.lm.parameters()).device
        take = lambda array: torch.from_numpy(array).to(device)  # noqa: E731
        self._sources = take(micro.sources)
        try:
            output = self.lm(input_ids=take(micro.token_ids), position_ids=take(micro.position_ids), use_cache=False)
        finally:
            self._sources = None
        logits, temperatures = output.logits[0], take(micro.temperatures)
        logprobs = token_logprobs(logits, take(micro.targets), temperatures)
        if with_entropy == "grad":
            return logprobs, entropy(logits, temperatures)
        if not with_entropy:
            return logprobs, torch.zeros_like(logprobs)
        with torch.no_grad():
            return logprobs, entropy(logits, temperatures)


def tokens_of(micro: MicroBatch, device: torch.device) -> Tokens:
    """The loss's view of a micro-batch."""
    arrays = (micro.behaviour, micro.advantages, micro.weights)
    return Tokens(*(torch.from_numpy(array).to(device) for array in arrays))


def load(path: str, config: Config, ranks: Ranks) -> Policy:
    """The model in `path`, ready to train: float32 master weights, computing in `model.dtype`.

    ConfigError if it cannot be read.
    """
    model = config.model
    policy = Policy(
        load_policy(path, "float32", model.attention, model.trust_remote_code, model.revision, ranks.device),
    )
    if config.train.lora.rank:
        _add_lora(policy, config)
    if config.train.memory.activation_checkpointing:
        policy.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    _without_dropout(policy)
    _shard(policy, config, ranks)
    return policy


def _add_lora(policy: Policy, config: Config) -> None:
    import peft

    lora = config.train.lora
    settings = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.target_modules, lora_dropout=0.0)
    peft.inject_adapter_in_model(settings, policy.lm, adapter_name=ADAPTER)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("lora_" in name)


def _without_dropout(policy: Policy) -> None:
    """Training must compute the very distribution that the engine sampled from."""
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _shard(policy: Policy, config: Config, ranks: Ranks) -> None:
    """FSDP2 over all ranks. "none" keeps whole weights on each: a mesh whose shard side is 1, the same code.

    One float32 process needs neither sharding nor casts, so it goes without (the wrapping costs time and changes
    nothing).
    """
    if config.model.dtype == "float16":
        raise ConfigError("model.dtype = float16 would need loss scaling to train; use bfloat16 or float32")
    if ranks.world == 1 and config.model.dtype == "float32":
        return
    ranks.need_group()
    kind = ranks.device.type
    if config.train.fsdp.strategy == "full":
        mesh = init_device_mesh(kind, (ranks.world,))
    else:
        mesh = init_device_mesh(kind, (ranks.world, 1), mesh_dim_names=("replicate", "shard"))
    compute = getattr(torch, config.model.dtype)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32),
        "reshard_after_forward": config.train.fsdp.reshard_after_forward,
    }
    blocks = set(getattr(policy.lm, "_no_split_modules", None) or [])
    for module in list(policy.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, **options)
    fully_shard(policy, **options)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full value of a possibly sharded tensor (all ranks must call it)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def export(policy: Policy, dtype: str, keep: bool) -> dict[str, torch.Tensor]:
    """Weights under their Hugging Face names, on the CPU, in `dtype`, LoRA merged, tied copies once.

    All ranks must call it; only those with `keep` get anything. LoRA: `W + alpha / r * B A`, computed on a copy, so
    that the frozen weights do not drift. Source: arXiv 2106.09685, eq. 3.
    """
    target = getattr(torch, dtype)
    scale = {name: module.scaling[ADAPTER] for name, module in policy.named_modules() if hasattr(module, "lora_A")}
    state = dict(policy.state_dict())
    untied = {name for name, _ in policy.named_parameters()} | {name for name, _ in policy.named_buffers()}
    weights: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if ".lora_" in name:
            continue
        full = whole(value.detach())
        plain = name.removeprefix("lm.").replace(".base_layer.", ".")
        owner = name.rpartition(".base_layer.")[0]
        if owner in scale and name.endswith(".weight"):
            a, b = (whole(state[f"{owner}.lora_{side}.{ADAPTER}.weight"].detach()) for side in "AB")
            full = full + scale[owner] * (b @ a)
        if keep and name in untied:
            weights[plain] = full.to("cpu", target if full.is_floating_point() else full.dtype).contiguous()
    return weights


def trainable_state(policy: Policy, keep: bool) -> dict[str, torch.Tensor]:
    """Exact values of the trained parameters by name; all ranks must call it, those with `keep` get them."""
    state = {}
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            full = whole(parameter.detach())
            if keep:
                state[name] = full.cpu().clone()
    return state


def load_trainable(policy: Policy, state: dict[str, torch.Tensor]) -> None:
    """Put `trainable_state` back, whatever the sharding; RlctlError-free only for the same model and LoRA shape."""
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(_like(state[name], parameter))


def _like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    value = value.to(parameter.device, parameter.dtype)
    if not isinstance(parameter, DTensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def start_path(config: Config) -> str:
    """Where RL starts from: the warm start's model when there is one, else the configured model."""
    warm = config.run_dir / "sft" / "model"
    return str(warm) if (Path(warm) / "config.json").exists() else config.model_dir
