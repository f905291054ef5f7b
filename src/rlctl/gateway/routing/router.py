"""Which engine gets a call. Pure: the time is given.

1. the one that has the trajectory's cache (its last call went there),
2. the one that has its prompt's (a sibling of its group went there), unless it has over SLACK calls more than another,
3. the least loaded.

Where the KV cache of one is more than PRESSED in use, what is new goes to another; a trajectory stays with its cache.
An engine is passed over while it is down (health check, broken connection) or *open* (circuit breaker): after STRIKES
calls in a row that it failed, for a time that doubles with every further failure. When none is left, one that is down
is tried rather than none.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

STRIKES = 3
OPEN_S, LONGEST_OPEN_S = 1.0, 60.0
SLACK = 4
PRESSED = 0.9
"""Share of the KV cache in use: beyond it running sequences are soon put off for one another. max_kv_usage where
that is lower."""
PROMPTS = 10_000
"""Prompts whose engine is remembered."""
HOMES = 100_000
"""Trajectories whose engine is remembered; those that only /generate names have no end that is told here."""


@dataclass(slots=True, eq=False)
class Engine:
    """One engine as the gateway sees it."""

    url: str
    up: bool = True
    """Answered its last health check or call; optimistic before the first."""
    serving: bool = False
    """Has answered at least one health check since it was last down."""
    running: int = 0
    """Calls in flight from this gateway."""
    sessions: int = 0
    """Trajectories whose next call comes here."""
    version: int = 0
    """Policy version it last reported."""
    failures: int = 0
    waiting: int = 0
    """Requests in its own queue, as it last reported."""
    kv: float = 0.0
    """Share of its KV cache that running sequences use, as it last reported."""
    strikes: int = 0
    """Failed calls in a row."""
    open_until: float = 0.0
    """No calls before this time."""

    def failed(self, now: float) -> None:
        """A call failed by the engine's fault."""
        self.failures += 1
        self.strikes += 1
        if self.strikes >= STRIKES:
            self.open_until = now + min(OPEN_S * 2 ** (self.strikes - STRIKES), LONGEST_OPEN_S)

    def answered(self) -> None:
        self.strikes, self.open_until = 0, 0.0

    def able(self, now: float) -> bool:
        return self.up and now >= self.open_until


class Router:
    """Sticky by trajectory and prompt, least loaded for what is new."""

    def __init__(self, urls: Iterable[str], pressed: float = PRESSED) -> None:
        self._pressed = pressed
        self.engines = [Engine(url.rstrip("/")) for url in urls]
        self._home: dict[str, Engine] = {}
        self._near: OrderedDict[str, Engine] = OrderedDict()

    def choose(self, uid: str, prompt_uid: str, now: float, avoid: Collection[Engine] = ()) -> Engine | None:
        """The engine for the next call of `uid` (one that is down if none is able); None when all are in `avoid`."""
        home = self._home.get(uid)
        if home is not None and home.able(now) and home not in avoid:
            return home
        left = [engine for engine in self.engines if engine not in avoid]
        if not left:
            return None
        chosen = min(left, key=lambda one: (not one.able(now), one.kv > self._pressed, one.running, one.sessions))
        near = self._near.get(prompt_uid)
        near_enough = near in left and near is not None and near.able(now) and near.running <= chosen.running + SLACK
        if near_enough and near is not None and (near.kv <= self._pressed or chosen.kv > self._pressed):
            chosen = near
        self.forget(uid)
        self._home[uid] = chosen
        chosen.sessions += 1
        if len(self._home) > HOMES:
            self.forget(next(iter(self._home)))
        if prompt_uid:
            self._near[prompt_uid] = chosen
            if len(self._near) > PROMPTS:
                self._near.popitem(last=False)
        return chosen

    def full(self, now: float, most_waiting: int, most_kv: float) -> str:
        """Why no engine takes a further call: all that are able have `most_waiting` requests in their own queue,
        or more than `most_kv` of their KV cache in use. '' when one takes it.
        """
        able = [engine for engine in self.engines if engine.able(now)]
        if not able or any(engine.waiting < most_waiting and engine.kv <= most_kv for engine in able):
            return ""
        if any(engine.kv > most_kv for engine in able):
            return f"every engine has more than {most_kv:.0%} of its KV cache in use, or a full queue"
        return f"every engine has {most_waiting} requests or more in its queue"

    def forget(self, uid: str) -> None:
        """The trajectory is over, or moves."""
        if (home := self._home.pop(uid, None)) is not None:
            home.sessions -= 1

    def add(self, url: str) -> None:
        """A further engine, used once it answers a health check; one that is there already stays as it is."""
        if all(engine.url != url.rstrip("/") for engine in self.engines):
            self.engines.append(Engine(url.rstrip("/"), up=False))

    def become(self, urls: Collection[str]) -> None:
        """Exactly these engines; nothing where `urls` is empty (nobody knew)."""
        if urls:
            for gone in [engine.url for engine in self.engines if engine.url not in urls]:
                self.remove(gone)
            for url in urls:
                self.add(url)

    def remove(self, url: str) -> None:
        """No further calls to this engine; those in flight go on."""
        gone = [engine for engine in self.engines if engine.url == url.rstrip("/")]
        self.engines = [engine for engine in self.engines if engine not in gone]
        self._home = {uid: engine for uid, engine in self._home.items() if engine not in gone}
        for prompt_uid in [name for name, engine in self._near.items() if engine in gone]:
            del self._near[prompt_uid]
