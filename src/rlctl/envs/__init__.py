"""Text environments: worlds, the words they are played with, instances that never meet, episodes."""

from rlctl.envs.episode import Episode
from rlctl.envs.lookup import families, family, instances

__all__ = ["Episode", "families", "family", "instances"]
