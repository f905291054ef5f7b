"""Checkpoints: `checkpoints/step_N/` with `hf/` (loads anywhere), `trainer.pt`, `state.json`.

Resuming gives the run that would have been: the same batch gives the same loss to the last bit on one rank.

Optimizer moments are stored whole and by parameter name, so a run can be resumed on another number of ranks.
`checkpoints/latest` names the last one that is complete; it is written after it, and both are atomic.
"""

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from rlctl.errors import RlctlError
from rlctl.train.model import policy as policies
from rlctl.train.model.policy import Policy
from rlctl.train.ranks import Ranks
from rlctl.train.weights import folders, publish

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


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


def save(
    root: Path,
    state: State,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    tokenizer: Any,
    dtype: str,
    ranks: Ranks,
    companions: dict[str, Any],
) -> Path:
    """Write `root/step_N` and move `latest` to it; every rank calls it, rank 0 writes.

    `companions`: further states, whole and on the CPU.
    """
    weights = policies.export(policy, dtype, keep=ranks.first)
    student = student_state(policy, optimizer, ranks)
    dice = ranks.gather(_rng())
    folder = root / f"step_{state.step}"
    if not ranks.first:
        return folder

    def fill(temporary: Path) -> None:
        (temporary / "hf").mkdir()
        publish.save_hf(policy, weights, temporary / "hf", dtype)
        tokenizer.save_pretrained(temporary / "hf")
        torch.save({**student, "rng": dice, "companions": companions}, temporary / "trainer.pt")
        (temporary / "state.json").write_text(json.dumps(asdict(state)), encoding="utf-8")

    folders.write_whole(folder, fill)
    folders.write_text(root / "latest", folder.name)
    return folder


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


def student_state(module: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> dict[str, Any]:
    """Exact parameters and moments of a trained model, whole and on the CPU; every rank calls it, rank 0 gets them."""
    exact = policies.trainable_state(module, keep=ranks.first)
    return {"parameters": exact, "optimizer": get_optimizer_state_dict(module, optimizer, options=WHOLE)}


def load_student(module: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    policies.load_trainable(module, saved["parameters"])
    set_optimizer_state_dict(module, optimizer, optim_state_dict=saved["optimizer"], options=WHOLE)


def restore(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, ranks: Ranks) -> dict[str, Any]:
    """Parameters, moments and random states of `folder`, the last as far as it had ranks; the companions' states."""
    saved: dict[str, Any] = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
    load_student(policy, optimizer, saved)
    if ranks.rank < len(saved["rng"]):
        _set_rng(saved["rng"][ranks.rank])
    companions: dict[str, Any] = saved["companions"]
    return companions


def _rng() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_rng(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
