"""Scores by content and reward version, in RUN_DIR/reward/scores.sqlite: shared by all reward processes of a run.

Only parts that cost something (sandbox, models) are cached, and only values: a failure is tried again next time.
"""

import hashlib
import importlib.util
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

import rlctl
from rlctl.config.serving import Reward
from rlctl.reward.functions import Sample
from rlctl.reward.values import Failure, Part, Value

encode = msgspec.msgpack.Encoder(order="deterministic").encode
BUSY_S = 30.0
ROWS = 500
"""Keys of one query (SQLite allows 999 variables)."""


def version(section: Reward) -> str:
    """Changes with the section (but not its weight), with rlctl, and with the source of a function of one's own."""
    digest = hashlib.sha256(rlctl.__version__.encode() + section.model_dump_json(exclude={"weight"}).encode())
    module, colon, _ = section.fn.partition(":")
    if colon and (spec := importlib.util.find_spec(module)) and spec.origin:
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


class Cache:
    """One file; safe for several processes, used by one thread of each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.execute("create table if not exists scores (key blob primary key, value blob) without rowid")

    def get(self, keys: Sequence[bytes]) -> dict[bytes, float | list[float]]:
        found: dict[bytes, float | list[float]] = {}
        for start in range(0, len(keys), ROWS):
            some = keys[start : start + ROWS]
            rows = self._db.execute(f"select key, value from scores where key in ({','.join('?' * len(some))})", some)
            found |= {key: msgspec.msgpack.decode(value) for key, value in rows}
        return found

    def put(self, values: dict[bytes, float | list[float]]) -> None:
        rows = [(key, encode(value)) for key, value in values.items()]
        self._db.execute("begin")
        self._db.executemany("insert or replace into scores values (?, ?)", rows)
        self._db.execute("commit")

    def close(self) -> None:
        self._db.close()


class Cached:
    """A part that asks the cache first."""

    def __init__(self, part: Part, reward_version: str, cache: Cache) -> None:
        self.name, self.weight, self.needs_text, self.counts = part.name, part.weight, part.needs_text, part.counts
        self.hits = 0
        self._part, self._version, self._cache = part, reward_version.encode(), cache

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        keys = [hashlib.sha256(self._version + encode(sample)).digest() for sample in samples]
        known = self._cache.get(list(dict.fromkeys(keys)))
        self.hits += sum(key in known for key in keys)
        missing = {key: sample for key, sample in zip(keys, samples, strict=True) if key not in known}
        fresh = dict(zip(missing, self._part.values(list(missing.values())) if missing else [], strict=True))
        self._cache.put({key: value for key, value in fresh.items() if not isinstance(value, Failure)})
        return [known[key] if key in known else fresh[key] for key in keys]

    def close(self) -> None:
        self._part.close()
