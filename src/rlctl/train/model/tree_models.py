"""Which models can be trained on forests of shared prefixes (`data.tree`), and what they are given then."""

import logging
from typing import Any

import torch

from rlctl.config import Config
from rlctl.errors import ConfigError
from rlctl.models.load import load_model_config
from rlctl.train.data.batches import MicroBatch
from rlctl.train.model import tree_attention
from rlctl.train.model.tree_attention import Tree
from rlctl.train.model.tree_flex import blocks_of

log = logging.getLogger(__name__)


def settle(config: Config, device: torch.device) -> Config:
    """The configuration with `train.prefix_tree` false where no forest can be used; ConfigError where one must be."""
    wanted = config.train.prefix_tree
    if not wanted:
        return config
    why = _obstacle(config)
    if wanted is True and why:
        raise ConfigError(f"train.prefix_tree = true cannot be used: {why}")
    if wanted == "auto" and device.type != "cpu":
        why = why or "it has not been run on a GPU yet (true asks for it all the same)"
    if not why:
        return config
    log.info("train.prefix_tree is off: %s", why)
    return config.model_copy(update={"train": config.train.model_copy(update={"prefix_tree": False})})


def _obstacle(config: Config) -> str:
    model = config.model
    if config.train.compile:
        return "train.compile = true; forests differ from pass to pass, and each would be compiled anew"
    if model.attention != "sdpa":
        return f'model.attention = "{model.attention}"; it needs "sdpa"'
    paths = [config.model_dir]
    paths += [config.reference.path] if config.algo.needs_reference else []
    paths += [config.critic.path] if config.algo.needs_critic else []
    for path in filter(None, paths):
        if why := why_not(load_model_config(path, model.trust_remote_code, model.revision)):
            return f"{path}: {why}"
    return ""


def why_not(model: Any) -> str:
    """Why a model of this transformers configuration cannot be given a forest; "" if it can.

    Every layer must be attention over all earlier tokens, called through transformers' interface, with no change to the
    scores. Positions are told, so rotary and learned ones are the same.
    """
    from transformers import AutoModelForCausalLM

    text = model.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"it has layers of the kind {', '.join(sorted(kinds - {'full_attention'}))}"
    if not kinds and getattr(text, "sliding_window", None):
        return "it has sliding-window attention"
    if getattr(text, "attn_logit_softcapping", None):
        return "it caps its attention scores"
    known = AutoModelForCausalLM._model_mapping.get(type(model), None)
    if not getattr(known, "_supports_attention_backend", False):
        return "transformers' attention interface is not used by it"
    return ""


def use_trees(lm: Any) -> None:
    """Give the model the attention that understands forests; without one it computes as before."""
    tree_attention.register(tree_attention.NAME, tree_attention.attention)
    lm.set_attn_implementation(tree_attention.NAME)


def inputs_of(
    micro: MicroBatch, model: Any, device: torch.device, attention: str = tree_attention.NAME
) -> dict[str, Any]:
    """Arguments of the forward pass of a model with the configuration `model`.

    `attention`: the name of the one that a forest needs.
    """
    ids, positions = (torch.from_numpy(array).to(device) for array in (micro.token_ids, micro.position_ids))
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    if micro.nodes is None:
        return inputs
    if model._attn_implementation != attention:
        raise RuntimeError("a forest for a model that would take it for one long sequence")
    nodes = [(int(start), int(stop), int(end)) for start, stop, end in micro.nodes]
    blocks = None if device.type == "cpu" else blocks_of(torch.from_numpy(micro.nodes).to(device))
    return inputs | {"attention_mask": no_mask(device), "tree": Tree(nodes, blocks)}


def no_mask(device: torch.device) -> torch.Tensor:
    """A mask that is already four-dimensional keeps transformers from making one of its own."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
