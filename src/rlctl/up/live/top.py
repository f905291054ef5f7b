"""What `rlctl top` shows: the pool's live numbers where it runs, and what the other components wrote last.

pool --PUB--> Listener --+
metrics/NAME.jsonl ------+--> Watch.read() --> {"run", "components", "pool", "groups", "outcomes", "rates", "ended"}
"""

import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from rlctl.errors import WireError
from rlctl.up.history.snapshot import Rows
from rlctl.up.live.status import status
from rlctl.wire.live import Listener
from rlctl.wire.messages import Finish, Live
from rlctl.wire.samples import OUTCOMES, TRAIN

RATES = {
    "gateway": {"requests": "requests", "response_tokens": "tokens", "completed": "episodes"},
    "engine": {"requests": "requests", "generated_tokens": "tokens", "tokens": "tokens"},
    "rollout": {"episodes": "episodes", "turns": "turns"},
    "reward": {"scored": "samples"},
    "train": {"step": "steps"},
    "pool": {"steps": "steps", "response_tokens": "tokens", "train.trained": "trained"},
}
"""Kind of component -> counter in its metrics -> what is counted."""
WINDOW_S = 30.0
"""Rates are over about this long."""
LATEST = 10
Json = dict[str, Any]


class Watch:
    """Follows one run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._rows: dict[str, Rows] = {}
        self._listener: Listener | None = None
        self._url = ""
        self._heard: deque[Live] = deque(maxlen=int(WINDOW_S * 2))
        self._ended: deque[Finish] = deque(maxlen=LATEST)

    def read(self, wait_s: float) -> Json:
        """The present moment; waits up to `wait_s` for the pool's next word."""
        found = status(self._run_dir)
        live = self._listen(found["components"], wait_s)
        rows = {path.stem: self._row(path) for path in sorted((self._run_dir / "metrics").glob("*.jsonl"))}
        if live:
            rows["pool"] = [{"t": one.t, **one.values} for one in self._heard]
        values = rows["pool"][-1] if rows.get("pool") else {}
        return {
            **found,
            "live": live,
            "pool": {name: value for name, value in values.items() if isinstance(value, int | float) and name != "t"},
            "groups": groups(values),
            "outcomes": {name: int(values.get(f"{TRAIN}.{name}", 0)) for name in ("created", "open", *OUTCOMES)},
            "rates": {name: per_second(some, counters(name)) for name, some in rows.items() if counters(name)},
            "ended": [msgspec.to_builtins(one) for one in self._ended],
        }

    def close(self) -> None:
        if self._listener:
            self._listener.close()

    def _row(self, path: Path) -> list[Json]:
        return self._rows.setdefault(path.stem, Rows(path)).refresh()

    def _listen(self, components: list[Json], wait_s: float) -> bool:
        """Whether the pool is there; (re)connects when it has another address or was restarted."""
        (pool,) = [row for row in components if row["name"] == "pool"] or [{"state": "none"}]
        if pool["state"] != "ready":
            return False
        if self._url != f"{pool['url']} {pool['pid']}":
            self.close()
            self._listener = None
            self._heard.clear()
            try:
                self._listener = Listener(pool["url"], timeout_s=2.0)
            except WireError:  # it will be dead, or another one, at the next look
                return False
            self._url = f"{pool['url']} {pool['pid']}"
        assert self._listener
        for one in self._listener.listen(wait_s):
            self._heard.append(one)
            self._ended.extend(one.ended)
        return bool(self._heard)


def groups(values: Json) -> dict[str, int]:
    """Training groups by state; those that are neither ready nor on lease are being played or scored."""
    on_lease, held = int(values.get("groups_on_lease", 0)), int(values.get("groups_held", 0))
    ready, in_flight = int(values.get("queue_ready", 0)), int(values.get("groups_in_flight", 0))
    playing = max(0, in_flight - ready - (on_lease - held))
    return {"playing": playing, "ready": ready, "learning": on_lease - held, "held": held}


def counters(name: str) -> dict[str, str]:
    """Counters of the component `name`, e.g. engine-0."""
    return RATES.get(name.split("-")[0], {})


def per_second(rows: list[Json], names: dict[str, str]) -> dict[str, float]:
    """Growth of counters per second over the last WINDOW_S; {} before the second row, or when the process is silent."""
    recent = [row for row in rows[-200:] if row["t"] >= rows[-1]["t"] - WINDOW_S]
    if len(recent) < 2 or time.time() - recent[-1]["t"] > WINDOW_S:
        return {}
    seconds = recent[-1]["t"] - recent[0]["t"]
    grown = {unit: recent[-1][name] - recent[0].get(name, 0) for name, unit in names.items() if name in recent[-1]}
    return {unit: round(number / seconds, 3) for unit, number in grown.items() if number >= 0 and seconds > 0}
