"""The public reference's pool (Claw-R1) under Ray: the same load as benchmarks/pool.py, which starts this program.

    PYTHONPATH=DIR PY pool_reference.py PROMPT RESPONSE STEPS

PY needs ray, psutil, torch (CPU), transformers < 5, tensordict and verl 0.7.0; DIR is a clone of AgentR1/Claw-R1.
Nothing of it is changed. One JSON line per measure: {"measure", "rate", ...}. Its pool keeps everything in memory only.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator

import psutil
import ray
from claw_r1.data_pool.data_model import DataPoolConfig, Step
from claw_r1.data_pool.data_pool import DataPool
from claw_r1.data_pool.training_backend import VerlBackend
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TURNS, MEMBERS, GROUPS = 8, 4, 4
"""Steps of a trajectory, trajectories of a group, groups of a fetched batch: as in pool.py."""


def steps_of(count: int, prompt: int, response: int, tag: str) -> Iterator[Step]:
    """Lists of their own for every step: pickle writes an object that occurs twice in a message only once."""
    tokens = [(i * 7919) % 150_000 for i in range(prompt + response)]
    logprobs = [-0.001 * i for i in range(response)]
    for i in range(count):
        trajectory, index = divmod(i, TURNS)
        yield Step(
            prompt_ids=tokens[:prompt],
            response_ids=tokens[prompt:],
            rollout_log_probs=logprobs[:],
            reward=float(trajectory % MEMBERS),
            trajectory_uid=f"{tag}-{trajectory:08d}-0123456789abcdef",
            prompt_uid=f"{tag}-p{trajectory // MEMBERS}",
            step_index=index,
            is_last=index == TURNS - 1,
            metadata={"data_source": "benchmark"},
        )


def actor() -> psutil.Process:
    """The pool's process: Ray names it after the actor's class and the method that runs."""
    found = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::")]
    return next(p for p in found if "DataPool" in " ".join(p.cmdline()))


def report(name: str, steps: int, began: float, cpu: float) -> None:
    seconds, times = time.perf_counter() - began, actor().cpu_times()
    used = (times.user + times.system - cpu) / steps * 1e6
    print(json.dumps({"measure": name, "steps": steps, "rate": steps / seconds, "pool_cpu_us": used}), flush=True)


def cpu_s() -> float:
    times = actor().cpu_times()
    return float(times.user + times.system)


def submit(pool: "ray.actor.ActorHandle", steps: list[Step], batch: int, in_flight: int, name: str) -> None:
    gc.freeze()  # the load that waits here is nothing that a client would have to scan
    began, cpu, waiting = time.perf_counter(), cpu_s(), []
    for i in range(0, len(steps), batch):
        if len(waiting) == in_flight:
            _, waiting = ray.wait(waiting, num_returns=1)
        part = steps[i : i + batch]
        waiting.append(pool.submit_step.remote(part[0]) if batch == 1 else pool.submit_steps.remote(part))
    ray.get(waiting)
    report(name, len(steps), began, cpu)


def main(prompt: int, response: int, count: int) -> None:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")), pad_token="<pad>"
    )
    backend = VerlBackend(tokenizer, prompt, response)
    pool = DataPool.options(name="data_pool", num_cpus=0).remote(DataPoolConfig(n_rollouts=MEMBERS), backend)
    ray.get(pool.get_statistics.remote())  # it runs
    rows = TURNS * MEMBERS * GROUPS
    few, many = max(1, count // 10 // rows) * rows, count // rows * rows
    submit(pool, list(steps_of(rows, prompt, response, "warm")), 1, 1, "warm-up")
    submit(pool, list(steps_of(few, prompt, response, "one")), 1, 1, "submit, single, one at a time")
    submit(pool, list(steps_of(few, prompt, response, "some")), 1, 64, "submit, single")
    steps = list(steps_of(many, prompt, response, "batch"))
    before = actor().memory_info().rss
    submit(pool, steps, 64, 4, "submit, batches of 64")
    resident = (actor().memory_info().rss - before) / many
    print(
        json.dumps({"measure": "memory", "bytes_per_step": resident, "rss_per_token": resident / (prompt + response)})
    )
    stored, began, cpu = many + 2 * few + rows, time.perf_counter(), cpu_s()
    batches = min(stored // rows, max(2, 2560 // rows))
    for _ in range(batches):
        got = ray.get(pool.fetch_batch.remote(GROUPS, MEMBERS))
        if len(got.batch["input_ids"]) != rows:
            raise RuntimeError(f"{len(got.batch['input_ids'])} rows instead of {rows}")
    report("fetch to tensors", batches * rows, began, cpu)
    submit(pool, list(steps_of(many, prompt, response, "more")), 64, 16, "submit, batches of 64, 16 in flight")
    ray.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
