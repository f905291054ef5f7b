"""Every task of the package reasoning-gym: questions made by seed, answers scored by the task itself (one answer).

The answer stands between <answer> and </answer>; `style = "compact"`, for tiny models: the bare question, and the
whole text is the answer.
"""

import re
from typing import Any

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance
from rlctl.envs.exchange import Exchange, Verdict, opening
from rlctl.envs.seeded import Seeded
from rlctl.errors import ConfigError

ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
MANY = 2**31


class Reasoning(Seeded):
    """One task. Reward: the task's own score, 0 to 1; success: a full score. Nobody knows what random text scores."""

    shares = {"train": 80, "val": 20}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.ReasoningGym.model_validate(env.options)
        try:
            import reasoning_gym
        except ImportError:
            raise ConfigError(worlds.missing("reasoning_gym")) from None
        try:
            self._task: Any = reasoning_gym.create_dataset(
                self.options.task, size=MANY, seed=0, **self.options.parameters
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"reasoning_gym task {self.options.task!r}: {error}") from error

    def instance(self, seed: int) -> Instance:
        entry = self._task[seed]
        return Instance(entry["question"].strip(), seed, entry, 1)

    def episode(self, instance: Instance, stream: int) -> Exchange:
        def judge(text: str, turn: int) -> Verdict:
            found = [text] if self.env.style == "compact" else ANSWER.findall(text)
            if not found:
                return Verdict(0.0, invalid=True)
            score = float(self._task.score_answer(found[-1].strip(), instance.payload))
            return Verdict(score, success=score >= 1.0)

        if self.env.style == "compact":
            return Exchange(self.env, opening("", instance.key), judge)
        return Exchange(self.env, opening(self.options.system, f"{instance.key}\n{self.options.instruction}"), judge)

    def task(self, instance: Instance) -> dict[str, str]:
        return {"question": instance.key, "ground_truth": str(instance.payload["answer"])}

    def floor(self, instance: Instance, actions: int) -> None:
        """Unknown."""

    def ceiling(self, instance: Instance, actions: int) -> None:
        """Unknown."""
