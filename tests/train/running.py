"""Runs of the main loop: alone on recorded batches, and under a real torchrun against real sockets."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import load_file

from rlctl.config import Config
from rlctl.models.load import load_tokenizer
from rlctl.telemetry.metrics import read
from rlctl.train.data.source import append_batch
from rlctl.train.loop import Run
from rlctl.train.model.policy import Policy
from rlctl.train.ranks import Ranks
from rlctl.train.weights.checkpoint import Checkpoints, State
from rlctl.train.weights.outgoing import Outgoing
from rlctl.wire.messages import Ack, Batch, Done, EndRun, Evaluate, Evaluated, FetchBatch, Hold, Nack, SetPolicyVersion
from rlctl.wire.samples import EvalResult

from .conftest import FakeEngine, FakePeer, config_for, random_batch


def record(path: Path, count: int) -> Path:
    with path.open("ab") as file:
        for seed in range(count):
            append_batch(file, random_batch(seed))
    return path


def run(config: Config) -> list[dict[str, Any]]:
    Run(config, Ranks(config)).to_the_end()
    return list(read(config.run_dir / "metrics" / "train.jsonl"))


def final_weights(config: Config, step: int) -> dict[str, torch.Tensor]:
    return load_file(config.run_dir / "checkpoints" / f"step_{step}" / "hf" / "model.safetensors")


def replay(model_dir: Path, run_dir: Path, recorded: Path, steps: int, **more: Any) -> Config:
    train = {"replay": str(recorded), "epochs": 2, **more.pop("train", {})}
    return config_for(model_dir, run_dir, run={"steps": steps}, train=train, ckpt={"every": 3}, **more)


def facts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = ("t", "peak_memory_mb", "mfu")
    return [{k: v for k, v in row.items() if not k.endswith("_s") and k not in measured} for row in rows]


class World:
    """A pool with endless random batches, an engine, and rollout; `events` is what the trainer did, in order."""

    def __init__(self, engine: FakeEngine, empty_polls: int = 0) -> None:
        self.engine, self.empty_polls, self.events, self.fetched = engine, empty_polls, [], 0
        self.pool, self.rollout = FakePeer(self.pool_mind), FakePeer(self.rollout_mind)

    def pool_mind(self, request: Any) -> Any:
        if isinstance(request, FetchBatch):
            if self.empty_polls:
                self.empty_polls -= 1
                return Batch()
            self.fetched += 1
            self.events.append(f"fetch {self.fetched}")
            return random_batch(self.fetched, request.groups)
        if isinstance(request, Ack):
            self.events.append(f"ack {request.lease}")
        if isinstance(request, Hold):
            self.events.append(f"hold {request.lease} of {len(request.trajectory_uids)}")
        if isinstance(request, Nack):
            self.events.append("give back all" if not request.lease else "give back one")
        if isinstance(request, SetPolicyVersion):
            assert self.engine.told[-1]["version"] == request.version, "the pool hears of a version no engine serves"
            self.events.append(f"version {request.version}")
        if isinstance(request, EndRun):
            self.events.append("end of the run")
        return Done()

    def rollout_mind(self, request: Evaluate) -> Evaluated:
        self.events.append(f"eval {request.name} {request.step}")
        return Evaluated([EvalResult(request.step, "fake", request.name, 1.0, 8, 0.5, 0.1, 0.5)])

    def config(self, model_dir: Path, run_dir: Path, **more: Any) -> Config:
        return config_for(
            model_dir,
            run_dir,
            engine={"urls": [self.engine.url]},
            pool={"port": self.pool.port},
            rollout={"port": self.rollout.port},
            eval=[{"name": "val", "every": 2}, {"name": "greedy", "temperature": 0.0}],
            **more,
        )

    def close(self) -> None:
        self.pool.close()
        self.rollout.close()


def torchrun(config: Config, folder: Path, processes: int = 1) -> subprocess.Popen[str]:
    path = folder / "resolved.toml"
    path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
    command = [sys.executable, *launcher, str(processes), "-m", "rlctl", "train", "--config", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def finished(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


def through_a_checkpoint(model_dir: Path, root: Path, policy: Policy, first: Any, second: Any, ranks: Ranks) -> None:
    """Save the policy with the optimizer `first`, and restore it with the optimizer `second`."""
    checkpoints = Checkpoints(root, load_tokenizer(str(model_dir)), ranks)
    checkpoints.begin(State(step=1), {"policy": (policy, first)}, {}, Outgoing(policy, "float32", ranks))
    assert checkpoints.finished(wait=True) == State(step=1)
    checkpoints.close()
    checkpoints.restore(root / "step_1", {"policy": (policy, second)}, {})
