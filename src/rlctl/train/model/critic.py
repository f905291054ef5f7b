"""The value model: a transformer body of its own with one output, trained beside the policy."""

import torch
from torch import nn

from rlctl.config import Config
from rlctl.train.data.batches import MicroBatch
from rlctl.train.model import policy as policies
from rlctl.train.model.blocks import checkpoint_blocks
from rlctl.train.model.policy import Scores
from rlctl.train.model.sequence import Spread, spread_of
from rlctl.train.model.stages import Stage, entering, stage_of
from rlctl.train.ranks import Ranks


class Critic(nn.Module):
    """Answers like a policy, with the value of the state before each trainable token in the place of its logprob."""

    def __init__(self, body: nn.Module, width: int, spread: Spread, stage: Stage) -> None:
        super().__init__()
        self.lm = body
        self.spread = spread
        self.stage = stage
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, micro: MicroBatch, with_entropy: str = "", reference: None = None, states: torch.Tensor | None = None
    ) -> Scores | torch.Tensor:
        """Values float32 `[N]`; `states` as for a policy."""
        device = next(self.lm.parameters()).device
        share = self.spread.of(micro)
        inputs = entering(self.spread.inputs(share, self.lm.config, device), states)
        found: torch.Tensor = self.lm(**inputs).last_hidden_state
        if not self.stage.last:
            return found
        rows = found.flatten(0, 1)[torch.from_numpy(share.micro.sources).to(device)]
        values = self.spread.together(self.head(rows).float(), share, len(micro.targets))[:, 0]
        return Scores(values.clone(), torch.zeros_like(values))  # FSDP's hooks on the output do not bear views


def load(config: Config, start: str, ranks: Ranks) -> Critic:
    """The critic of `[critic]`: the body of a language model, all of it trained; V = 0 everywhere at first."""
    lm = policies.load_lm(config.critic.path or start, config, ranks)
    width, spread = lm.config.get_text_config().hidden_size, spread_of(config, ranks)
    critic = Critic(lm.base_model, width, spread, stage_of(config, ranks)).to(lm.device)
    checkpoint_blocks(critic.lm, config.train.memory)
    critic.train()
    policies.prepare(critic, config, ranks)
    return critic
