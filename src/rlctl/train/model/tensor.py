"""Tensor parallelism by the model's own plan: transformers names a style for each module, torch's DTensor does it.

    colwise   [out / t, in] x [in]      -> a slice of the output on every rank (whole heads)
    rowwise   [out, in / t] x [in / t]  -> partial sums, added up over the ranks

Between them activations are plain tensors that all ranks of the group hold alike. What the plan does not name (norms)
is kept whole on every rank, as a replicated DTensor: so all parameters live on one mesh, which the gradient norm, the
fused optimizer and checkpoints need. Source: Megatron-LM, arXiv 1909.08053, section 3.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from rlctl.errors import ConfigError

KEY = "train.parallel.tensor"


class Whole(ParallelStyle):
    """Parameters whole on every rank; `placement`: what the input is, the same as the output."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.placement = placement

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            if self.placement == Shard(HEADS) and inputs[0].ndim != HEADS + 2:
                raise ConfigError(f"{KEY} cannot be used: a norm of the model is not over one head at a time")
            return DTensor.from_local(inputs[0], mesh, [self.placement], run_check=False), *inputs[1:]

        def leave(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, enter, leave)


HEADS = 2
"""Dimension of the heads in `[B, S, H, d]`, which is what a norm between projection and attention sees."""
STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "": partial(Whole, Replicate()),
    "colwise": ColwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
    "embedding_rowwise": partial(RowwiseParallel, input_layouts=Replicate()),
    "replicated_with_grad_allreduce": partial(Whole, Shard(HEADS)),
}
"""transformers' words for what can be done here; "": kept whole."""
LORA = {
    "colwise": {"base_layer": "colwise", "lora_A": "", "lora_B": "colwise"},
    "rowwise": {"base_layer": "rowwise", "lora_A": "rowwise", "lora_B": ""},
}
"""Styles inside of an adapted layer: `B A x` is cut as `W x` is; "" is whole."""


def cut(module: Any, mesh: DeviceMesh) -> None:
    """Cut `module` over the one-dimensional `mesh`; `module.lm` is the transformer with the plan.

    ConfigError where the model has no plan, one that is not understood, or sizes that are no multiple of the mesh's.
    """
    lm, size = module.lm, mesh.size()
    plan = dict(getattr(lm, "_tp_plan", None) or {})
    if not plan:
        raise ConfigError(f"{KEY} = {size} cannot be used: {type(lm).__name__} has no tensor-parallel plan")
    _check_heads(lm.config.get_text_config(), size)
    styles = {name: _style(name, plan) for name, part in lm.named_modules() if _own(part)}
    if unknown := sorted({style for style in styles.values() if style not in STYLES}):
        raise ConfigError(
            f"{KEY} = {size} cannot be used: the plan of {type(lm).__name__} has styles that rlctl does not know: "
            + ", ".join(unknown)
        )
    owners = {f"lm.{name}": style for name, style in styles.items()}
    tied = _tied(module)
    for name, part in list(module.named_modules()):
        if _own(part):
            style = owners.get(name, "")
            _check_width(part, name, style, size)
            parallelize_module(part, mesh, STYLES[style]())
    for owner, name, source in tied:
        setattr(owner, name, source[0]._parameters[source[1]])


def _own(part: nn.Module) -> bool:
    """Whether it has parameters that are not its children's."""
    return any(True for _ in part.parameters(recurse=False))


def _style(name: str, plan: dict[str, str]) -> str:
    """The plan's style for the module `name`; "" where it names none."""
    general = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
    if general in plan:
        return plan[general]
    for inner in ("base_layer", "lora_A", "lora_B"):
        layer, found, _ = general.partition(f".{inner}")
        if found and layer in plan:
            return LORA.get(plan[layer], {}).get(inner, f"{plan[layer]} under LoRA")
    return ""


def _tied(module: nn.Module) -> list[tuple[nn.Module, str, tuple[nn.Module, str]]]:
    """Parameters that several modules share: (module, name, (first module, name)) of all but the first."""
    first: dict[int, tuple[nn.Module, str]] = {}
    again = []
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) in first:
                again.append((part, name, first[id(parameter)]))
            else:
                first[id(parameter)] = part, name
    return again


def _check_heads(config: Any, size: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads and heads % size:
            raise ConfigError(f"{KEY} = {size} does not divide the model's {name} = {heads}")


def _check_width(part: nn.Module, name: str, style: str, size: int) -> None:
    """Only equal slices: activations between layers are plain tensors, whose true width torch cannot know."""
    weight = getattr(part, "weight", None)
    if weight is None or style in ("", "replicated_with_grad_allreduce"):
        return
    side = 1 if style.startswith("rowwise") else 0
    if weight.shape[side] % size:
        raise ConfigError(f"{KEY} = {size} does not divide dimension {side} of {name}.weight {list(weight.shape)}")
