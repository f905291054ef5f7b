"""Which engine gets a call: the one that has the trajectory's cache, else the least loaded one that is up."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


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


class Router:
    """Sticky by trajectory, least loaded for new ones."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.engines = [Engine(url.rstrip("/")) for url in urls]
        self._home: dict[str, Engine] = {}

    def choose(self, uid: str, avoid: Collection[Engine] = ()) -> Engine | None:
        """The engine for the next call of `uid` (one that is down if none is up); None when all are in `avoid`."""
        home = self._home.get(uid)
        if home is not None and home.up and home not in avoid:
            return home
        able = [engine for engine in self.engines if engine not in avoid]
        if not able:
            return None
        chosen = min(able, key=lambda engine: (not engine.up, engine.running, engine.sessions))
        self.forget(uid)
        self._home[uid] = chosen
        chosen.sessions += 1
        return chosen

    def forget(self, uid: str) -> None:
        """The trajectory is over, or moves."""
        if (home := self._home.pop(uid, None)) is not None:
            home.sessions -= 1
