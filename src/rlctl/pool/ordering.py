"""Which ready group goes first, and which is given up when the queue is full: sort keys, the smallest first.

The age of a group is the lowest policy version among its tokens (the version it was opened under, if it has none).
Keys end in the group's number, so no two are equal.
"""

from collections.abc import Callable

from rlctl.pool.state import LiveGroup

Key = tuple[int, int]


def fifo(group: LiveGroup) -> Key:
    """Opened first."""
    return (0, group.number)


def freshest(group: LiveGroup) -> Key:
    """Newest policy first; among equals, opened first."""
    return (-age(group), group.number)


def stalest(group: LiveGroup) -> Key:
    """Oldest policy first; among equals, opened first."""
    return (age(group), group.number)


def newest(group: LiveGroup) -> Key:
    """Opened last."""
    return (0, -group.number)


def age(group: LiveGroup) -> int:
    return group.opened_version if group.oldest is None else group.oldest


ORDERS: dict[str, Callable[[LiveGroup], Key]] = {"fifo": fifo, "freshest": freshest}
"""pool.order"""
EVICTIONS: dict[str, Callable[[LiveGroup], Key]] = {"oldest": fifo, "stalest": stalest, "newest": newest}
"""pool.evict"""
