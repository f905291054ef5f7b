"""Checkpoints: `checkpoints/step_N/` with `hf/` (loads anywhere), `trainer/` (every rank's shards), `state.json`; with
LoRA `adapter/` in the place of `hf/`, or beside it.

    training:   copy to the CPU --> next step --> ...           --> finished? acknowledge, prune
    thread:                     '-> write shards (every rank) -> hf, scalars.pt, state.json -> rename -> `latest`

Training waits for the copies only; at most one checkpoint is being written at a time. Resuming gives the run that would
have been: the same batch gives the same loss to the last bit on one rank, and any number of ranks can go on with what
another number wrote. `checkpoints/latest` names the last one that is complete; it is written after it, and both are
atomic: whoever dies in between leaves the one before.
"""

import copy
import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlctl.disk import files, folders
from rlctl.errors import RlctlError
from rlctl.train.ranks import FOREVER, Ranks
from rlctl.train.weights import dice, states
from rlctl.train.weights.outgoing import Outgoing
from rlctl.train.weights.states import Trained, Tree

log = logging.getLogger(__name__)
PREFIX = "step_"
Part = tuple[str, Tree, Callable[[Tree, Path], Any]]
"""A subfolder that others than the trainer read: its name, its tensors, and what writes them."""


@dataclass(frozen=True)
class State:
    """Where the run stands."""

    step: int = 0
    """Training steps done."""
    version: int = 0
    """Policy version that goes with these weights."""
    leases: list[str] = field(default_factory=list)
    """Leases of the batches since the checkpoint before, acknowledged after a resume: the old process may not have got
    to it."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """Outcome per trajectory of those batches."""
    batches: int = 0
    """Batches fetched so far; more than steps under dynamic sampling."""
    entropy_bonus: float = 0.0
    """Of the next step, where it adapts."""


class Checkpoints:
    """The checkpoints of one run; every rank has one and calls its methods in the same order."""

    def __init__(self, root: Path, tokenizer: Any, ranks: Ranks) -> None:
        self.root, self._tokenizer, self._ranks = root, tokenizer, ranks
        ranks.need_group()
        self._group = dist.new_group(backend="gloo", timeout=FOREVER)
        """The writers' own: they talk while training does."""
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: tuple[State, Future[None]] | None = None
        if ranks.first:
            for left in root.glob(f"{PREFIX}*{files.TEMPORARY}"):  # of a process that died while it wrote
                shutil.rmtree(left)

    def begin(
        self, state: State, students: dict[str, Trained], others: Tree, outgoing: Outgoing, merged: bool = True
    ) -> None:
        """Copy everything, and write `step_N` beside the training. None may be under way (see `finished`).

        `students`: what is trained, by name; `others`: further tensors; `merged`: with `hf/` where there are adapters.
        """
        assert self._writing is None
        ranks, folder = self._ranks, self.root / f"{PREFIX}{state.step}"
        parts: list[Part] = []
        if outgoing.base:
            parts.append(("adapter", states.staged(outgoing.adapters), outgoing.save_adapters))
        if merged or not outgoing.base:
            parts.append(("hf", states.staged(outgoing.whole), outgoing.save_whole))
        tree = states.staged(_tree(students, others))
        scalars = {
            "rng": ranks.gather(dice.get()),
            "groups": {name: copy.deepcopy(states.scalars(trained)) for name, trained in students.items()},
        }
        if ranks.first:
            folders.begin(folder)
        ranks.broadcast(None)  # no rank writes into the folder before it is there
        self._writing = (state, self._thread.submit(self._write, folder, state, tree, parts, scalars))

    def finished(self, wait: bool) -> State | None:
        """The state that has become durable since the last call, once; raises what kept it from that."""
        if self._writing is None or not (wait or self._writing[1].done()):
            return None
        state, writing = self._writing
        writing.result()
        self._writing = None
        return state

    @property
    def writing(self) -> bool:
        """Whether one was begun that `finished` has not given back."""
        return self._writing is not None

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end."""
        self._thread.shutdown()

    def _write(self, folder: Path, state: State, tree: Tree, parts: list[Part], scalars: dict[str, Any]) -> None:
        temporary = files.temporary(folder)
        states.write(tree, temporary / "trainer", self._group)
        if not self._ranks.first:
            return
        states.check(temporary / "trainer")
        for name, weights, save in parts:
            (temporary / name).mkdir()
            save(weights, temporary / name)
            self._tokenizer.save_pretrained(temporary / name)
        torch.save(scalars, temporary / "scalars.pt")
        (temporary / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")
        folders.finish(folder)
        files.write_text(self.root / "latest", folder.name, durable=True)
        log.info("%s is on disk", folder.name)

    def restore(self, folder: Path, students: dict[str, Trained], others: Tree) -> None:
        """Everything `begin` was given, in place, and the random states as far as there were ranks."""
        tree = _tree(students, others)
        states.read(tree, folder / "trainer", self._group)
        scalars = torch.load(folder / "scalars.pt", weights_only=True)
        for name, trained in students.items():
            states.put_moments(trained, tree[name]["optimizer"])
            states.put_scalars(trained, scalars["groups"][name])
        if self._ranks.rank < len(scalars["rng"]):
            dice.put(scalars["rng"][self._ranks.rank])


def _tree(students: dict[str, Trained], others: Tree) -> Tree:
    return {name: states.student(trained) for name, trained in students.items()} | others


def latest(root: Path) -> Path | None:
    """Folder of the last complete checkpoint; RlctlError when `latest` names one that is gone."""
    if not (root / "latest").exists():
        return None
    folder = root / (root / "latest").read_text(encoding="utf-8").strip()
    if not (folder / "state.json").exists():
        raise RlctlError(
            f"{root / 'latest'} names {folder.name}, which is not there; write the name of one that is, or delete it"
        )
    return folder


def read_state(folder: Path) -> State:
    return State(**json.loads((folder / "state.json").read_text(encoding="utf-8")))
