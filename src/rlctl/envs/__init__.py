"""Text environments: worlds, the words they are played with, instances that never meet, episodes."""

from rlctl.envs.bounds import Bounds, bounds
from rlctl.envs.episode import Episode
from rlctl.envs.lookup import families, family
from rlctl.envs.splits import instances

__all__ = ["Bounds", "Episode", "bounds", "families", "family", "instances"]
