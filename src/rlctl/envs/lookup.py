"""From an [[env]] table to its family and instances: the built-in ones by name, anybody's by `module:Class`."""

import importlib
from collections.abc import Callable
from itertools import islice
from typing import Any

from rlctl.config.serving import Env
from rlctl.config.suggest import nearest
from rlctl.envs.adapters.arena import Arena
from rlctl.envs.adapters.gym import Gymnasium
from rlctl.envs.adapters.reasoning import Reasoning
from rlctl.envs.adapters.verified import Verified
from rlctl.envs.base import Family, Instance
from rlctl.envs.grids.frozenlake import FrozenLake
from rlctl.envs.grids.sokoban import Sokoban
from rlctl.envs.seeded import Seeded
from rlctl.envs.splits import too_few
from rlctl.envs.tasks.bandit import Bandit
from rlctl.envs.tasks.countdown import Countdown
from rlctl.envs.tasks.errands import Errands
from rlctl.envs.tasks.questions import Questions
from rlctl.errors import ConfigError

NEEDED = ("splits", "distinct", "episode", "task", "floor", "ceiling")


def families() -> dict[str, Callable[[Env], Family]]:
    """Built-in families by the name used in presets."""
    return {
        "frozenlake": FrozenLake,
        "sokoban": Sokoban,
        "countdown": Countdown,
        "bandit": Bandit,
        "two_armed_bandit": Bandit,
        "command": Errands,
        "reasoning_gym": Reasoning,
        "textarena": Arena,
        "verifiers": Verified,
        "gymnasium": Gymnasium,
        "questions": Questions,
        "gsm8k": Questions,
    }


def family(env: Env) -> Family:
    """The family of this [[env]]; ConfigError when there is none or when it lacks something."""
    known = families()
    if env.name in known:
        return known[env.name](env)
    module, colon, name = env.name.partition(":")
    if not colon:
        hint = nearest(env.name, known)
        raise ConfigError(
            f"no environment {env.name!r}"
            + (f"; did you mean {hint!r}?" if hint else f"; there are: {', '.join(known)}, module:Class")
        )
    try:
        maker: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"environment {env.name!r} cannot be imported: {error}") from error
    made = maker(env)
    if missing := [part for part in NEEDED if not hasattr(made, part)]:
        raise ConfigError(f"environment {env.name!r} lacks {', '.join(missing)} (see rlctl.envs.base.Family)")
    return made


def seeded(env: Env) -> Seeded:
    """The family of an [[env]] that has an optimal player, which demonstrations need."""
    made = family(env)
    if not isinstance(made, Seeded) or "sft" not in made.splits:
        raise ConfigError(f"environment {env.name!r} has no optimal player, so it has no demonstrations")
    return made


def instances(env: Env, split: str, count: int, seed: int | None = None) -> list[Instance]:
    """`count` distinct instances of `split`; `seed` is the first instance seed tried (None: env.seed)."""
    found = list(islice(family(env).distinct(split, env.seed if seed is None else seed), count))
    if len(found) < count:
        raise too_few(env, split, count, len(found))
    return found
