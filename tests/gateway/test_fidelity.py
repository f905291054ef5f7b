"""Random multi-turn sessions through real HTTP: the pool has what the engine sampled, in the context the engine saw."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from conftest import Stack, running
from fakes import FakeEngine, FakePool
from model import CHATML, FORGETFUL

from rlctl.wire.arrays import unpack_floats, unpack_ids
from rlctl.wire.samples import Step

WORDS = [
    "Left",
    "🙂",
    "東京",
    "é",
    "<|im_end|>",
    "<|im_start|>system",
    "\ufdd0",
    "\n\n",
    " ",
    "{}",
    "</think>",
    "a" * 40,
]
TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}


def contexts(steps: dict[int, Step]) -> dict[int, list[int]]:
    """The full prompt of every step, rebuilt from its parents as the trainer does it."""
    found: dict[int, list[int]] = {}
    for index in sorted(steps):
        step = steps[index]
        before = found[step.parent] + unpack_ids(steps[step.parent].response_ids).tolist() if step.parent >= 0 else []
        found[index] = before + unpack_ids(step.prompt_ids).tolist()
    return found


def check_fidelity(engines: list[FakeEngine], pool: FakePool) -> int:
    """Every response is one Step with the same context, ids, logprobs and versions. Number of Steps."""
    sampled = Counter(
        (call["session"], tuple(call["prompt"]), tuple(ids), tuple(logprobs), tuple(versions))
        for engine in engines
        for call in engine.calls
        for ids, logprobs, versions in zip(call["responses"], call["logprobs"], call["versions"], strict=True)
    )
    kept: Counter = Counter()
    for uid, steps in pool.steps.items():
        assert sorted(steps) == list(range(len(steps))), "indices have holes"
        full = contexts(steps)
        for index, step in steps.items():
            logprobs = tuple(round(float(x), 4) for x in unpack_floats(step.logprobs))
            ids = tuple(unpack_ids(step.response_ids).tolist())
            kept[uid, tuple(full[index]), ids, logprobs, tuple(map(tuple, step.versions))] += 1
    assert kept == sampled
    return sum(kept.values())


async def talk(stack: Stack, uid: str, seed: int) -> None:
    """One random agent: several turns, tools, n, cuts, retries, rewritten answers, parallel calls, sub-agents."""
    dice = random.Random(seed)
    tools = {"tools": [TOOL]} if dice.random() < 0.3 else {}
    history = [{"role": "user", "content": " ".join(dice.choices(WORDS, k=3))}]
    for _ in range(dice.randint(1, 6)):
        if tools and dice.random() < 0.5:
            stack.engine.script.append('x <tool_call>{"name": "move", "arguments": {"to":   1}}</tool_call>')
        fields = tools | ({"max_tokens": dice.choice([1, 3, 40])} if dice.random() < 0.4 else {})
        if dice.random() < 0.15:
            fields["n"] = 3
        calls = 2 if dice.random() < 0.15 else 1
        answers = await asyncio.gather(*(stack.client.chat(uid, history, **fields) for _ in range(calls)))
        if dice.random() < 0.15:
            await stack.client.chat(uid, [{"role": "system", "content": "sub"}, history[0]])
        message = dict(dice.choice(dice.choice(answers)["choices"])["message"])
        if dice.random() < 0.15 and message["content"]:
            message["content"] += " (edited)"
        history.append(message)
        for call in message.get("tool_calls") or ():
            history.append({"role": "tool", "tool_call_id": call["id"], "content": dice.choice(WORDS)})
        history.append({"role": "user", "content": " ".join(dice.choices(WORDS, k=dice.randint(0, 4)))})
        if dice.random() < 0.1:
            history = history[-1:]
    await stack.client.post(f"/{uid}/p1/v1/complete_trajectory", {})


@pytest.mark.parametrize("template", [CHATML, FORGETFUL], ids=["chatml", "forgetful"])
async def test_the_pool_has_every_token_as_sampled_over_random_sessions(tmp_path: Path, template: str) -> None:
    async with running(tmp_path, template, engines=2) as stack:
        for start in range(0, 40, 20):
            await asyncio.gather(*(talk(stack, f"t{seed}", seed) for seed in range(start, start + 20)))
        assert check_fidelity(stack.engines, stack.pool) > 150
        assert {uid: end.num_steps for uid, end in stack.pool.ends.items()} == {
            uid: len(steps) for uid, steps in stack.pool.steps.items()
        }
        reasons = {step.fork_reason for steps in stack.pool.steps.values() for step in steps.values()}
        assert reasons >= {"", "choice", "parallel", "rewritten_history", "new_conversation"}
        extended = sum(step.parent >= 0 for steps in stack.pool.steps.values() for step in steps.values())
        assert extended > 50
