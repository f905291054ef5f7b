"""The reference policy: a frozen copy, a teacher, or the policy's own base weights under LoRA."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from rlctl.config import Config
from rlctl.train.data.batches import MicroBatch
from rlctl.train.model import policy as policies
from rlctl.train.model.pipeline import answers
from rlctl.train.model.policy import Policy
from rlctl.train.ranks import Ranks


class Reference:
    """Answers with log-probabilities; never trained."""

    def __init__(self, config: Config, policy: Policy, start: str, ranks: Ranks) -> None:
        self._policy = policy
        self._every = config.reference.update_every
        self.shares_weights = bool(config.train.lora.rank) and not config.reference.path
        """Whether it is the policy with its adapters off."""
        self._own = None if self.shares_weights else policies.load_frozen(config.reference.path or start, config, ranks)

    def logprobs(self, micros: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """float32 `[N]` of each micro-batch; none but on the last stage."""
        with self._answering() as model:
            return answers(model, micros)

    @torch.no_grad()
    def logits(self, micro: MicroBatch, *states: torch.Tensor) -> torch.Tensor:
        """`[N, V]`, whole: for the exact divergence; on a stage that is not the last, states for the next."""
        with self._answering() as model:
            chunk, model.chunk = model.chunk, 0
            try:
                found: torch.Tensor = model(micro, policies.LOGITS, None, *states)
                return found
            finally:
                model.chunk = chunk

    @contextmanager
    def _answering(self) -> Iterator[Policy]:
        if self._own is not None:
            yield self._own
            return
        _adapters(self._policy, False)
        try:
            yield self._policy
        finally:
            _adapters(self._policy, True)

    def follow(self, step: int) -> None:
        """Become the policy as it is after training step `step`, when that is due."""
        if self._own is None or not self._every or step % self._every:
            return
        with torch.no_grad():
            for mine, theirs in zip(self._own.parameters(), self._policy.parameters(), strict=True):
                mine.copy_(theirs)

    @property
    def moving(self) -> nn.Module | None:
        """Its own weights if they move with the run, so that a checkpoint has to hold them."""
        return self._own if self._every else None


def _adapters(policy: nn.Module, on: bool) -> None:
    for module in policy.modules():
        if hasattr(module, "lora_A"):
            module.enable_adapters(on)  # type: ignore[operator]
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("lora_" in name)
