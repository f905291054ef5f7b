"""One optimizer step of the trainer against TRL's GRPO trainer: same model, batch and machine, in one run.

    python benchmarks/trainer.py [--rounds 5] [--hidden 128] [--layers 4] [--groups 8] [--size 8]

Prints one JSON line per shape of batch and trainer, then the quotients. `loss` is that of the first step, before
any weight has moved: it must be equal, or the script fails. Both trainers run in this process with one thread, turn by
turn, so that a busy machine hurts them alike; CPU seconds count. `tokens` are those of the batch without padding.

- single: one answer per trajectory, the prompt of a group shared;
- multi: turns of prompt and answer behind one another, of differing number.

TRL gets the batch as its own generation step would hand it over (left-padded prompts, right-padded completions, a mask
of `tool_mask` on text that was not sampled), in the same number of micro-batches. No text is generated.
"""

import argparse
import json
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlctl.config import Config
from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny
from rlctl.train.learner import Learner, plan_for
from rlctl.train.losses import policy_loss
from rlctl.train.optim import Extras
from rlctl.train.ranks import Ranks
from rlctl.train.samples import TrainSample

LR = 1e-6
SHAPES = {"single": (1, 1, 96, 48), "multi": (2, 8, 32, 12)}
"""Fewest and most turns, tokens of a prompt, most tokens of an answer."""


def batch(shape: str, groups: int, size: int, vocabulary: int) -> list[TrainSample]:
    """Random tokens; every group has one first prompt; advantages of one sign per trajectory."""
    fewest, most, prompt, answer = SHAPES[shape]
    rng = np.random.default_rng(0)
    made = []
    for g in range(groups):
        first = rng.integers(5, vocabulary, prompt)
        for t in range(size):
            pieces: list[tuple[np.ndarray, bool]] = []
            for turn in range(int(rng.integers(fewest, most + 1))):
                pieces.append((first if not turn else rng.integers(5, vocabulary, prompt), False))
                pieces.append((rng.integers(5, vocabulary, rng.integers(answer // 3, answer + 1)), True))
            made.append(sample(f"{g}-{t}", pieces, float(rng.normal())))
    return made


def sample(uid: str, pieces: Sequence[tuple[np.ndarray, bool]], advantage: float) -> TrainSample:
    ids = np.concatenate([piece for piece, _ in pieces]).astype(np.int32)
    mask = np.concatenate([np.full(len(piece), sampled) for piece, sampled in pieces])
    zeros = np.zeros(len(ids), np.float32)
    return TrainSample(
        uid=uid,
        token_ids=ids,
        loss_mask=mask,
        logprobs=zeros - 5.0,
        versions=zeros.astype(np.int32),
        temperatures=zeros + 1,
        advantages=zeros + np.float32(advantage),
        turns=zeros.astype(np.int32),
        siblings_tokens=int(mask.sum()),
    )


def ours(folder: Path, samples: list[TrainSample], micro_tokens: int) -> tuple[Callable[[], float], int]:
    """One optimizer step -> its loss; and the number of micro-batches."""
    config = Config.model_validate(
        {
            "model": {"path": str(folder), "max_context": 4096},
            "rollout": {"max_tokens": 64},
            "train": {"micro_tokens": micro_tokens, "optim": {"lr": LR}},
            "algo": {"clip_high": 0.2},
        }
    )
    learner = Learner(config, config.train.optim, str(folder), 1000, Ranks(config))

    def step() -> float:
        plan = plan_for([samples], config, 1, "token_mean")[0]
        (row,) = learner.run(plan, lambda a, b, c: policy_loss(a, b, c, config.algo), 0, Extras(entropy="value"))
        return row["loss"] / row["divisor"]

    return step, len(plan_for([samples], config, 1, "token_mean")[0][0].micros)


def theirs(folder: Path, samples: list[TrainSample], micros: int) -> Callable[[], float]:
    """The same step by TRL: its loss, its model call, its optimizer (torch AdamW), its clipping."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = len(samples) // micros
    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=micros,
        num_generations=rows,
        loss_type="dapo",
        beta=0.0,
        learning_rate=LR,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
    )
    data = Dataset.from_dict({"prompt": ["a"] * len(samples)})
    trainer = GRPOTrainer(str(folder), reward_funcs=lambda **_: [0.0], args=settings, train_dataset=data)
    trainer.create_optimizer()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = micros
    parts = [padded(samples[i * rows : (i + 1) * rows], samples) for i in range(micros)]
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]

    def step() -> float:
        total = 0.0
        for part in parts:
            loss = trainer.compute_loss(trainer.model, part)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        return total

    return step


def padded(part: Sequence[TrainSample], everyone: Sequence[TrainSample]) -> dict[str, Any]:
    """What `_generate_and_score_completions` returns: the completion begins with the first sampled token."""
    starts = [int(np.flatnonzero(s.loss_mask)[0]) for s in part]
    before = max(starts)
    after = max(len(s) - start for s, start in zip(part, starts, strict=True))
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    arrays = {name: np.zeros((len(part), before if "prompt" in name else after), np.int64) for name in names}
    old = np.zeros((len(part), after), np.float32)
    for row, (one, start) in enumerate(zip(part, starts, strict=True)):
        rest = len(one) - start
        arrays["prompt_ids"][row, before - start :] = one.token_ids[:start]
        arrays["prompt_mask"][row, before - start :] = 1
        arrays["completion_ids"][row, :rest] = one.token_ids[start:]
        arrays["completion_mask"][row, :rest] = 1
        arrays["tool_mask"][row, :rest] = one.loss_mask[start:]
        old[row, :rest] = one.logprobs[start:]
    return {
        **{name: torch.from_numpy(array) for name, array in arrays.items()},
        "advantages": torch.tensor([float(s.advantages[-1]) for s in part]),
        "old_per_token_logps": torch.from_numpy(old),
        "num_items_in_batch": torch.tensor(float(sum(s.trainable for s in everyone))),
    }


def compare(shape: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both trainers on one batch; RuntimeError when their first losses differ."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    samples = batch(shape, options.groups, options.size, vocabulary)
    tokens = sum(len(s) for s in samples)
    mine, micros = ours(folder, samples, options.micro_tokens)
    while len(samples) % micros:
        micros += 1
    steps = {"rlctl": mine, "trl": theirs(folder, samples, micros)}
    losses = {name: step() for name, step in steps.items()}
    if abs(losses["rlctl"] - losses["trl"]) > 1e-5 * max(1.0, abs(losses["trl"])):
        raise RuntimeError(f"{shape}: the first losses differ: {losses}")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            began = time.process_time()
            step()
            seconds[name].append(time.process_time() - began)
    best = {name: min(values) for name, values in seconds.items()}
    for name, value in best.items():
        row = {"shape": shape, "trainer": name, "loss": losses[name], "cpu_s": round(value, 4), "tokens": tokens}
        print(json.dumps(row | {"tokens_per_cpu_s": round(tokens / value), "rounds": options.rounds}), flush=True)
    return {"shape": shape, "times_faster": round(best["trl"] / best["rlctl"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 5), ("hidden", 128), ("layers", 4), ("groups", 8), ("size", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-tokens", type=int, default=8192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        shape = Tiny(hidden_size=options.hidden, layers=options.layers, heads=4, mlp=3 * options.hidden)
        build_tiny(folder, shape, max_context=4096, seed=0)
        for row in [compare(kind, folder, options) for kind in SHAPES]:
            print(json.dumps(row))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_rss_mb_of_both": peak // 1024}), file=sys.stderr)


if __name__ == "__main__":
    main()
