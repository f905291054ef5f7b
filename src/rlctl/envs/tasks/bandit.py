"""Two-armed bandits with telling names, one pull: the safe arm pays a little, the risky one rarely, but more.

bandit            RAGEN of 2025-03 and later: safe 0.1; risky 1 with probability 1/4, else 0. Success: the risky arm.
two_armed_bandit  RAGEN of 2025-02: safe N(0.2, 0.1); risky 3/4 N(0.1, 0.1) + 1/4 N(1, 0.1). Success: any arm.

An instance is a pair of names in one of its two orders. `arms` are trained on, `val_arms` held out, `sft_arms`
demonstrated, and so are every two names of a list in `alike`: of these both are risky. No pair may be in two splits.
"""

import itertools
import random
from typing import NamedTuple

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs import text
from rlctl.envs.base import Instance, Rate, Skip
from rlctl.envs.exchange import Exchange, Verdict, opening
from rlctl.envs.seeded import Seeded
from rlctl.errors import ConfigError

RULES = "You pull one of two arms, once. What an arm pays has to do with its name. Get as much as you can."
SPREAD = 0.1


class Arms(NamedTuple):
    shown: tuple[str, str]
    """In the order of the prompt."""
    risky: tuple[str, ...]
    """One of them; both where they are alike."""


class Bandit(Seeded):
    """All pairs of one [[env]]."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        options = worlds.Bandit.model_validate(env.options)
        self._gaussian = env.name == "two_armed_bandit"
        self._split: dict[frozenset[str], str] = {}
        alike = [pair for names in options.alike for pair in itertools.combinations(names, 2)]
        for split, pairs in (("train", options.arms), ("val", options.val_arms), ("sft", [*options.sft_arms, *alike])):
            for pair in pairs:
                if self._split.setdefault(frozenset(pair), split) != split:
                    raise ConfigError(f"[[env]] {env.tag or env.name}: the arms {' and '.join(pair)} are in two splits")
        told = dict.fromkeys((*options.arms, *options.val_arms, *options.sft_arms))
        best = {(safe, risky): (risky,) for safe, risky in told} | {(one, other): (other, one) for one, other in alike}
        if twice := [pair for pair in best if pair[::-1] in best]:
            names = " and ".join(twice[0])
            raise ConfigError(
                f"[[env]] {env.tag or env.name}: {names} are a pair in both orders; put them into `alike`"
            )
        self._all = [Arms(shown, risky) for pair, risky in best.items() for shown in (pair, pair[::-1])]

    @property
    def splits(self) -> tuple[str, ...]:
        return ("sft", "sft_test", "train", "val")

    def split(self, instance: Instance) -> str:
        return self._split[frozenset(instance.payload.shown)]

    def instance(self, seed: int) -> Instance | Skip:
        arms = self._all[seed % len(self._all)]
        return Instance(" ".join(arms.shown), seed, arms, 1)

    def episode(self, instance: Instance, stream: int) -> Exchange:
        luck = random.Random(f"bandit {instance.seed} {stream}")
        arms: Arms = instance.payload

        def judge(answer: str, turn: int) -> Verdict:
            pulled = (text.body(answer, self.env) or "").strip().lower()
            known = {name.lower(): name for name in arms.shown}
            if pulled not in known:
                return Verdict(0.0, invalid=True)
            risky = known[pulled] in arms.risky
            return Verdict(self._pays(risky, luck), success=risky or self._gaussian)

        return Exchange(self.env, self._opening(arms), judge)

    def _pays(self, risky: bool, luck: random.Random) -> float:
        rich = risky and luck.random() < 0.25
        if self._gaussian:
            return luck.gauss(1.0 if rich else 0.1 if risky else 0.2, SPREAD)
        return float(rich) if risky else 0.1

    def demonstrate(self, instance: Instance, number: int = 0, thoughts: bool = False) -> Exchange:
        arms: Arms = instance.payload
        episode = self.episode(instance, number)
        best = arms.risky[number % len(arms.risky)]
        thought = f"{best} sounds risky, and pays more on average." if thoughts else ""
        episode.feed(text.answer(self.env, [best], thought))
        return episode

    def floor(self, instance: Instance, actions: int) -> Rate:
        return Rate(1.0 if self._gaussian else len(instance.payload.risky) / 2, True)

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        return Rate(1.0, True)

    def _opening(self, arms: Arms) -> list[text.Message]:
        if self.env.style == "compact":
            return opening("", " ".join(arms.shown))
        asked = f"{RULES}\nArms: {', '.join(arms.shown)}\n"
        return opening(text.SYSTEM, asked + text.format_asked_for(self.env, "arm"))
