"""One optimizer step of the trainer against TRL's GRPO trainer: same model, batch and machine, in one run.

    python benchmarks/trainer.py [--rounds 5] [--hidden 128] [--layers 4] [--groups 8] [--size 8] [--shapes single ...]
    python benchmarks/trainer.py --gpu      MFU of a 0.5B model and the time of publishing it; not yet run
    python benchmarks/trainer.py --dry      the same code on a tiny model, anywhere

Prints one JSON line per shape of batch and trainer, then the quotients. `loss` is that of the first step, before
any weight has moved: it must be equal, or the script fails. The trainers run in this process with one thread, turn by
turn, so that a busy machine hurts them alike; CPU seconds count. `tokens` are those of the batch without padding, each
prefix as often as it occurs. `rows` is this trainer with `train.prefix_tree = false`. Peak memory is that of a process
of its own per trainer (resident, and above what it held before the first step).

- single: one answer per trajectory, the prompt of a group shared;
- multi: turns of prompt and answer behind one another, of differing number; the first prompt of a group is shared;
- system: the same with a first prompt of 128 tokens instead of 32 (instructions, tools, the task);
- forks: history is rewritten after each turn (of an answer, its first third stays), so each turn is a sample of its own
  that shares the history.

TRL gets the batch as its own generation step would hand it over (left-padded prompts, right-padded completions, a mask
of `tool_mask` on text that was not sampled), in the same number of micro-batches. No text is generated.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlctl.config import Config
from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny
from rlctl.models.vocabulary import build_tokenizer
from rlctl.telemetry.memory import resident_kib
from rlctl.train.data.samples import Call, TrainSample
from rlctl.train.learning.learner import Learner, plan_for
from rlctl.train.learning.optim import Extras
from rlctl.train.monitor.effort import flops_of, peak_memory_mb
from rlctl.train.objective.losses import policy_loss
from rlctl.train.ranks import Ranks
from rlctl.train.weights import publish
from rlctl.train.weights.outgoing import Outgoing

LR = 1e-6
HALF_BILLION = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                "intermediate_size": 4864, "vocab_size": 151936}  # fmt: skip
"""Qwen2-0.5B."""


class Shape(NamedTuple):
    """Of the trajectories of a batch."""

    turns: tuple[int, int]
    """Fewest and most."""
    first: int
    """Tokens of the first prompt, which a group shares."""
    prompt: int
    """Tokens of the others."""
    answer: int
    """Most tokens of an answer; the fewest are a third."""
    forks: bool = False


SHAPES = {
    "single": Shape((1, 1), 96, 0, 48),
    "multi": Shape((2, 8), 32, 32, 12),
    "system": Shape((2, 8), 128, 32, 12),
    "forks": Shape((3, 3), 64, 32, 48, forks=True),
}
TRAINERS = ("rlctl", "rows", "trl")


def batch(shape: Shape, groups: int, size: int, vocabulary: int) -> list[TrainSample]:
    """Random tokens; every group has one first prompt; advantages of one sign per trajectory."""
    rng = np.random.default_rng(0)
    made = []
    for g in range(groups):
        first = rng.integers(5, vocabulary, shape.first)
        for t in range(size):
            advantage, pieces = float(rng.normal()), list[tuple[np.ndarray, bool]]()
            for turn in range(int(rng.integers(shape.turns[0], shape.turns[1] + 1))):
                pieces.append((first if not turn else rng.integers(5, vocabulary, shape.prompt), False))
                answer = rng.integers(5, vocabulary, rng.integers(shape.answer // 3, shape.answer + 1))
                if shape.forks:
                    made.append(sample(f"{g}-{t}", [*pieces, (answer, True)], advantage))
                pieces.append((answer[: len(answer) // 3], False) if shape.forks else (answer, True))
            if not shape.forks:
                made.append(sample(f"{g}-{t}", pieces, advantage))
    return made


def sample(uid: str, pieces: Sequence[tuple[np.ndarray, bool]], advantage: float) -> TrainSample:
    ids = np.concatenate([piece for piece, _ in pieces]).astype(np.int32)
    mask = np.concatenate([np.full(len(piece), sampled) for piece, sampled in pieces])
    places = np.flatnonzero(mask)
    zeros = np.zeros(len(places), np.float32)
    return TrainSample(
        uid=uid,
        token_ids=ids,
        places=places,
        logprobs=zeros - 5.0,
        advantages=zeros + np.float32(advantage),
        calls=[Call(0, len(places), 1.0, [(0, len(places))])],
        siblings_tokens=len(places),
    )


def ours(
    folder: Path, samples: list[TrainSample], micro_tokens: int, tree: bool | str = "auto", **model: Any
) -> tuple[Callable[[], float], int, Learner]:
    """One optimizer step -> its loss; the number of micro-batches; what learns."""
    config = Config.model_validate(
        {
            "model": {"path": str(folder), "max_context": 4096, **model},
            "rollout": {"max_tokens": 64},
            "train": {"micro_tokens": micro_tokens, "optim": {"lr": LR}, "prefix_tree": tree},
            "algo": {"clip_high": 0.2},
        }
    )
    learner = Learner(config, config.train.optim, str(folder), 1000, Ranks(config))

    def step() -> float:
        plan = plan_for([samples], config, 1, "token_mean")[0]
        (row,) = learner.run(plan, lambda a, b, c: policy_loss(a, b, c, config.algo), 0, Extras(entropy="value"))
        return row["loss"] / row["divisor"]

    return step, len(plan_for([samples], config, 1, "token_mean")[0][0].micros), learner


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
    starts = [int(s.places[0]) for s in part]
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
        old[row, one.places - start] = one.logprobs
    return {
        **{name: torch.from_numpy(array) for name, array in arrays.items()},
        "advantages": torch.tensor([float(s.advantages[-1]) for s in part]),
        "old_per_token_logps": torch.from_numpy(old),
        "num_items_in_batch": torch.tensor(float(sum(s.trainable for s in everyone))),
    }


def trainer(name: str, folder: Path, samples: list[TrainSample], micro_tokens: int) -> Callable[[], float]:
    """One optimizer step of one of `TRAINERS`; TRL's in as many micro-batches as ours, or the next that divides."""
    step, micros, _ = ours(folder, samples, micro_tokens, False if name == "rows" else "auto")
    if name != "trl":
        return step
    del step, _
    while len(samples) % micros:
        micros += 1
    return theirs(folder, samples, micros)


def compare(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All trainers on one batch; RuntimeError when their first losses differ."""
    samples = batch(SHAPES[name], options.groups, options.size, vocabulary_of(folder))
    tokens = sum(len(s) for s in samples)
    steps = {one: trainer(one, folder, samples, options.micro_tokens) for one in TRAINERS}
    losses = {one: step() for one, step in steps.items()}
    if max(losses.values()) - min(losses.values()) > 1e-5 * max(1.0, abs(losses["trl"])):
        raise RuntimeError(f"{name}: the first losses differ: {losses}")
    seconds: dict[str, list[float]] = {one: [] for one in steps}
    for _ in range(options.rounds):
        for one, step in steps.items():
            began = time.process_time()
            step()
            seconds[one].append(time.process_time() - began)
    best = {one: min(values) for one, values in seconds.items()}
    peaks = {one: peak_of(one, name) for one in steps}
    for one, value in best.items():
        row = {"shape": name, "trainer": one, "loss": losses[one], "cpu_s": round(value, 4), "tokens": tokens}
        print(json.dumps(row | {"tokens_per_cpu_s": round(tokens / value)} | peaks[one]), flush=True)
    faster = {f"{one}_times_faster": round(best["trl"] / best[one], 2) for one in ("rlctl", "rows")}
    return {"shape": name, "rounds": options.rounds, **faster}


def peak_of(one: str, name: str) -> dict[str, int]:
    """Peak memory of a process of its own, with the options of this one."""
    command = [sys.executable, __file__, *sys.argv[1:], "--peak", one, "--shapes", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def peak(options: argparse.Namespace, folder: Path) -> dict[str, int]:
    """MiB after three steps, and how much of it came with them."""
    samples = batch(SHAPES[options.shapes[0]], options.groups, options.size, vocabulary_of(folder))
    step = trainer(options.peak, folder, samples, options.micro_tokens)
    before = resident_kib("VmRSS")
    for _ in range(3):
        step()
    after = resident_kib("VmHWM")
    return {"peak_rss_mb": after // 1024, "peak_of_steps_mb": (after - before) // 1024}


def vocabulary_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def utilisation(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """MFU of packed training in bfloat16 (no shared prefixes), and publishing against a plain write of the bytes.

    Not yet run on a GPU; `--dry` runs the same code with a tiny shape wherever there is none.
    """
    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 128, "vocab_size": 400}  # fmt: skip
    shape = tiny if options.dry else HALF_BILLION
    model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True, max_position_embeddings=4096))
    model.save_pretrained(folder)
    build_tokenizer(4096).save_pretrained(folder)
    kind = Shape((1, 1), 32, 0, 48) if options.dry else Shape((1, 1), 512, 0, 1024)
    samples = batch(kind, options.groups * options.size, 1, shape["vocab_size"])
    step, micros, learner = ours(folder, samples, options.micro_tokens, True, dtype="bfloat16")
    seconds = []
    for _ in range(2 + options.rounds):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    best = min(seconds[2:])
    work = flops_of(samples, learner.policy, 1) / best / 1e12
    tokens = sum(map(len, samples))
    row = {"micros": micros, "tokens_per_s": tokens / best, "tflops_per_s": work, "mfu": work / options.peak_tflops}
    row |= {"device": learner.ranks.device.type, "peak_memory_mb": peak_memory_mb()}
    began = time.perf_counter()
    publish.write(Outgoing(learner.policy, "bfloat16", learner.ranks), folder / "weights", 1)
    row["publish_s"] = time.perf_counter() - began
    data = (folder / "weights" / "model.safetensors").read_bytes()
    began = time.perf_counter()
    (folder / "copy").write_bytes(data)
    row |= {"bytes": len(data), "plain_write_s": time.perf_counter() - began}
    learner.ranks.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 5), ("hidden", 128), ("layers", 4), ("groups", 8), ("size", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-tokens", type=int, default=8192)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--peak", choices=TRAINERS, help="only the peak memory of this trainer")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--peak-tflops", type=float, default=989.5, help="of one H100 or H200, bf16, dense")
    options = parser.parse_args()
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu needs a CUDA device; --dry tries the code without one")
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        if options.gpu or options.dry:
            print(json.dumps(utilisation(options, folder)))
            return
        shape = Tiny(hidden_size=options.hidden, layers=options.layers, heads=4, mlp=3 * options.hidden)
        build_tiny(folder, shape, max_context=4096, seed=0)
        if options.peak:
            print(json.dumps(peak(options, folder)))
            return
        for row in [compare(kind, folder, options) for kind in options.shapes]:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
