"""From an [[env]] table to its family: the built-in ones by name, anybody's by `module:Class`."""

import importlib
from collections.abc import Callable
from typing import Any

from rlctl.config.serving import Env
from rlctl.config.suggest import nearest
from rlctl.envs.base import Family
from rlctl.envs.frozenlake import FrozenLake
from rlctl.envs.sokoban import Sokoban
from rlctl.errors import ConfigError

NEEDED = ("actions", "rules", "symbols", "shares", "instance", "world", "expert", "floor", "ceiling")


def families() -> dict[str, Callable[[Env], Family]]:
    """Built-in families by the name used in presets."""
    return {"frozenlake": FrozenLake, "sokoban": Sokoban}


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
