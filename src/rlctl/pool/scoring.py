"""The queue of complete trajectories without a reward. Handing one out twice does no harm, so it is not journaled."""

from collections import OrderedDict, deque


class ScoringQueue:
    """First in, first out; what was taken and not scored within `timeout_s` can be taken again."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._free: OrderedDict[str, None] = OrderedDict()
        self._taken: dict[str, float] = {}
        self._order: deque[tuple[float, str]] = deque()

    def __len__(self) -> int:
        return len(self._free) + len(self._taken)

    @property
    def free(self) -> int:
        """Trajectories that `take` would hand out now."""
        return len(self._free)

    def add(self, uid: str) -> None:
        if uid not in self._taken:
            self._free[uid] = None

    def discard(self, uid: str) -> None:
        self._free.pop(uid, None)
        self._taken.pop(uid, None)

    def expire(self, now: float) -> None:
        """Return to the queue what was taken too long ago: the first taken is the first due."""
        while self._order and self._order[0][0] <= now:
            until, uid = self._order.popleft()
            if self._taken.get(uid) == until:
                del self._taken[uid]
                self._free[uid] = None

    def take(self, limit: int, now: float) -> list[str]:
        self.expire(now)
        uids = [self._free.popitem(last=False)[0] for _ in range(min(limit, len(self._free)))]
        until = now + self.timeout_s
        for uid in uids:
            self._taken[uid] = until
            self._order.append((until, uid))
        return uids
