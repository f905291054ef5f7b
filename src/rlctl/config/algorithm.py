"""The [algo] section: how rewards become advantages, and advantages a loss."""

from typing import Literal

from pydantic import Field, model_validator

from rlctl.config.base import Fraction, NonNegative, Positive, Section

TOKEN_KINDS = ("gae", "bi_level_gae", "reinforce_pp", "reinforce_pp_baseline", "distill")
"""Advantages that differ from token to token: made of returns, values or another model's log-probabilities."""


class Correction(Section):
    """Importance weights `old / behaviour` on the loss, against policies that lag behind or engines that differ."""

    level: Literal["off", "token", "sequence", "geometric"] = "off"
    """Of each token; of the whole sequence (product); of the sequence's geometric mean. Needs algo.old other than
    behaviour."""
    mode: Literal["truncate", "mask"] = "truncate"
    """Weights above `cap` become `cap`, or tokens outside [floor, cap] are left out."""
    cap: float = Field(default=2.0, gt=0)
    floor: float = Field(default=0.0, ge=0)
    """Only for mode = "mask"."""


class Kl(Section):
    """Distance to the reference policy, `x = log policy - log reference` on sampled tokens."""

    coef: float = Field(default=0.0, ge=0)
    """0: off, and no reference model is loaded for it."""
    kind: Literal["k1", "abs", "k2", "k3", "full"] = "k2"
    """x, |x|, x^2 / 2, exp(-x) - 1 + x, or the exact sum over the vocabulary (only in the loss). As a loss k2 has the
    gradient of KL(policy || reference) on policy; k1 has none in expectation."""
    place: Literal["loss", "reward"] = "loss"
    """reward: taken off every token's reward; needs a token-level advantage."""


class Algo(Section):
    """How rewards become gradients."""

    advantage: Literal[
        "grpo",
        "dr_grpo",
        "rloo",
        "reinforce",
        "remax",
        "gigpo",
        "gae",
        "bi_level_gae",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "distill",
    ] = "grpo"
    """gae and bi_level_gae need a [critic]; distill learns from [reference.path] as the teacher."""
    gamma: Fraction = 1.0
    """Discount per token (gae, bi_level_gae), per turn (gigpo)."""
    lam: Fraction = 1.0
    """GAE's lambda per token."""
    turn_gamma: Fraction = 1.0
    """Discount per turn (bi_level_gae)."""
    turn_lam: Fraction = 1.0
    """GAE's lambda per turn (bi_level_gae)."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight of the step advantage beside the episode's (gigpo)."""
    turn_rewards: bool = False
    """Token-level advantages and gigpo: environment rewards stand at the end of their turn, the rest of the
    trajectory's reward at its last token. Off: all of it at the last token."""
    whiten: bool = False
    """Advantages to mean 0 and std 1 over the tokens of the batch (reinforce_pp and its baseline form always do)."""
    loss: Literal["ppo_clip", "gspo", "cispo", "sapo", "policy_gradient"] = "ppo_clip"
    old: Literal["behaviour", "recompute", "interpolate"] = "behaviour"
    """Denominator of the ratio: the log-probabilities of the engine; of the trainer before its first update on this
    batch (decoupled PPO, one more forward pass); or a guess at those from the policy versions (no pass)."""
    correction: Correction = Correction()
    kl: Kl = Kl()
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.28, ge=0)
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound c > 1 on the loss of negative advantages; 0: off."""
    sapo_tau_positive: float = Field(default=1.0, gt=0)
    """Sharpness of sapo's gate for positive advantages."""
    sapo_tau_negative: float = Field(default=1.05, gt=0)
    entropy_bonus: float = Field(default=0.0, ge=0)
    """With `entropy_target` the first value; it then adapts."""
    entropy_target: float | None = None
    """In nats: after a training step the bonus rises by `entropy_step` when entropy was below it, else falls."""
    entropy_step: float = Field(default=0.005, gt=0)
    entropy_bonus_max: float = Field(default=0.1, gt=0)
    """Upper bound of the adaptive bonus."""
    aggregation: Literal[
        "token_mean",
        "seq_mean_token_sum",
        "seq_mean_token_mean",
        "seq_mean_turn_mean",
        "prompt_mean",
        "constant_length",
    ] = "token_mean"
    constant_length: Positive = 1024
    """Tokens that every sequence is divided by under aggregation = "constant_length"."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Groups whose rewards are all equal carry no signal: drop (and count) them, or train on them."""

    early_stop_ratio: float = Field(default=0.0, ge=0)
    """An update whose mean ratio over the whole minibatch is above this is not made, nor the further ones of its
    training step; 0: off."""
    dynamic_sampling: NonNegative = 0
    """Fetches at most, to fill a training step up to train.groups_per_step groups that carry a signal; 0: one fetch,
    whatever it holds."""
    drop_truncated: bool = False
    """Trajectories with an answer cut off at the length limit are not trained on (they count in the baseline)."""
    overlong_buffer: NonNegative = 0
    """The reward falls linearly over the last so many tokens before the response limit, by 1 at the limit (of the
    longest answer); 0: off."""
    length_penalty: float = Field(default=0.0, ge=0)
    """Taken off the reward per 1,000 response tokens of the trajectory."""
    binary_reward: float | None = None
    """The reward becomes 1 where it is at least this, else 0 (before penalties)."""
    keep_uncertain: float = Field(default=1.0, gt=0, le=1)
    """Share of the groups to train on: those whose rewards differ most (std); the others end as `filtered`."""

    @model_validator(mode="after")
    def _bounds(self) -> "Algo":
        if 0 < self.dual_clip <= 1:
            raise ValueError(f"dual_clip = {self.dual_clip:g} must be above 1 (or 0: off)")
        if self.correction.level != "off" and self.old == "behaviour":
            raise ValueError('correction needs old = "recompute" or "interpolate": against behaviour all weights are 1')
        if self.kl.coef and self.kl.place == "reward" and (self.advantage not in TOKEN_KINDS or self.kl.kind == "full"):
            raise ValueError(
                'kl.place = "reward" needs one of the advantages '
                + ", ".join(TOKEN_KINDS[:4])
                + ", and a kl.kind other than full"
            )
        if self.kl.coef and self.kl.place == "reward" and self.advantage == "distill":
            raise ValueError('advantage = "distill" has no reward that kl.place = "reward" could act on')
        return self

    @property
    def needs_reference(self) -> bool:
        return self.kl.coef > 0 or self.advantage == "distill"

    @property
    def needs_critic(self) -> bool:
        return self.advantage in ("gae", "bi_level_gae")
