"""Training, evaluation and demonstration instances that never meet: a board's text decides its split.

crc32(board) modulo 100 is looked up in the family's shares, so two splits have no board in common whatever seeds they
start from, and a board is in the same split in every run.
"""

from zlib import crc32

from rlctl.config.serving import Env
from rlctl.errors import ConfigError

PATIENCE = 20_000
"""Seeds in a row without a new board of the split after which a generator counts as exhausted."""
BARREN = 1_000
"""Seeds in a row without any board after which it counts as unable to make one."""


class Patience:
    """Notices that a generator has nothing new to give."""

    def __init__(self) -> None:
        self._without_new = 0
        self._without_any = 0

    def saw(self, new: bool, reason: str) -> None:
        """Take note of one seed: whether it gave a new board of the split, else why it gave none ("": it gave one)."""
        self._without_new = 0 if new else self._without_new + 1
        self._without_any = self._without_any + 1 if reason == "no_instance" else 0

    @property
    def state(self) -> list[int]:
        """What `restore` takes."""
        return [self._without_new, self._without_any]

    def restore(self, state: list[int]) -> None:
        self._without_new, self._without_any = state

    @property
    def over(self) -> bool:
        return self._without_new >= PATIENCE or self._without_any >= BARREN


def split_of(key: str, shares: dict[str, int]) -> str:
    """The split that owns a board."""
    point = crc32(key.encode()) % 100
    for split, share in shares.items():
        if point < share:
            return split
        point -= share
    raise ConfigError(f"the shares of the splits add up to less than 100: {shares}")


def too_few(env: Env, split: str, wanted: int, found: int) -> ConfigError:
    """The error for a generator that has not that many boards."""
    return ConfigError(
        f"env {env.tag or env.name}: {wanted} distinct {split} instances were asked for, but only {found} were found"
        " and further seeds give no new ones: ask for fewer, or make the world larger or less crowded"
    )
