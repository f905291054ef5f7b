"""A trainer without a model: `python -m tests.chaos.trainer_stub RUN_DIR CHECKPOINT_EVERY`.

It follows the rule of rlctl.train.loop through the real PoolSource: fetch, learn (here: add the uids to its weights),
hold the batch, write a checkpoint in a thread if due, and acknowledge all that it contains once it is on disk. Now and
then it gives a batch back instead. What it used is what its checkpoint `weights.json` says; every attempt is noted in
`attempts.txt`.
While RUN_DIR/drain exists it takes single groups and writes a checkpoint after each of them.
"""

import json
import os
import random
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlctl.config import load as configure
from rlctl.train.data.source import PoolSource
from rlctl.wire.arrays import unpack_ids
from rlctl.wire.messages import Batch, Nack
from rlctl.wire.sockets import AskBlocking

GROUPS = 2
EMPTY: dict[str, Any] = {"step": 0, "used": {}, "leases": [], "outcomes": {}}


class Disk:
    """One checkpoint at a time, slowly; what it contains is acknowledged when it has its name."""

    def __init__(self, folder: Path, source: PoolSource) -> None:
        self._folder, self._source = folder, source
        self._thread = ThreadPoolExecutor(1)
        self._writing: tuple[dict[str, Any], Future[None]] | None = None

    def save(self, weights: dict[str, Any]) -> None:
        self.settle(wait=True)
        named = {name: weights[name] for name in ("leases", "outcomes")}
        self._writing = (named, self._thread.submit(self._write, json.dumps(weights)))

    def settle(self, wait: bool) -> None:
        if self._writing and (wait or self._writing[1].done()):
            named, writing = self._writing
            writing.result()
            self._source.ack(named["leases"], named["outcomes"])
            self._writing = None

    def _write(self, text: str) -> None:
        temporary = self._folder / "weights.tmp"
        time.sleep(random.random() * 0.1)
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / "weights.json")


def load(folder: Path) -> dict[str, Any]:
    path = folder / "weights.json"
    weights: dict[str, Any] = json.loads(path.read_text()) if path.exists() else dict(EMPTY)
    return weights


def learn(weights: dict[str, Any], batch: Batch) -> None:
    """Sum up the batch: trajectory uid -> the response ids of its Steps, and its reward."""
    weights["step"] += 1
    weights["leases"].append(batch.lease)
    for group in batch.groups:
        for one in group.trajectories:
            seen = weights["used"].setdefault(one.uid, [])
            seen.append({"steps": [unpack_ids(s.response_ids).tolist() for s in one.steps], "reward": one.reward})
            weights["outcomes"][one.uid] = "trained"


def main(folder: Path, every: int) -> None:
    config = configure([str(folder / "preset.toml")], []).config
    source, nack = PoolSource(config), AskBlocking(config.pool_url)
    weights, dice, disk = load(folder), random.Random(), Disk(folder, source)
    source.begin(weights["leases"], weights["outcomes"])
    weights |= {"leases": [], "outcomes": {}}
    while True:
        drain = (folder / "drain").exists()
        batch = source.fetch(1 if drain else GROUPS)
        if not drain and dice.random() < 0.1:
            nack.ask(Nack(lease=batch.lease))
            continue
        uids = [one.uid for group in batch.groups for one in group.trajectories]
        with (folder / "attempts.txt").open("a") as file:
            file.write("".join(f"{uid}\n" for uid in uids))
        learn(weights, batch)
        source.hold([batch.lease], dict.fromkeys(uids, "trained"))
        if drain or weights["step"] % every == 0:
            disk.save(weights)
            weights |= {"leases": [], "outcomes": {}}
        disk.settle(wait=drain)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
