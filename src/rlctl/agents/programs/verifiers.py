"""`python -m rlctl.agents.programs.verifiers ENV_ID [JSON]`: one rollout of an environment of verifiers 0.1.

    RLCTL_TASK {"seed", "split", "sampling"} -> row of the environment's data -> its own rollout, at OPENAI_BASE_URL
        -> {"reward", "extra": its metrics} on stdout

JSON are the arguments of `load_environment`. An environment without evaluation data gives every fifth row for that.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

HELD_OUT = 5


def pick(split: str, seed: int, train: int, val: int) -> tuple[str, int]:
    """Which data set ("train" or "val") and row a task is; without `val` rows every fifth of `train` is held out."""
    if val:
        return (split, seed % (val if split == "val" else train))
    held_out = -(-train // HELD_OUT)
    if split == "val":
        return "train", HELD_OUT * (seed % held_out)
    number = seed % (train - held_out)
    return "train", number + number // (HELD_OUT - 1) + 1


async def rollout(env_id: str, arguments: Mapping[str, Any], task: Mapping[str, Any], base_url: str) -> dict[str, Any]:
    """What the episode was worth."""
    import verifiers

    env = verifiers.load_environment(env_id, **arguments)
    own = env.eval_dataset is not None
    train = env.get_dataset()
    val = env.get_eval_dataset() if own else []
    name, row = pick(task["split"], task["seed"], len(train), len(val))
    client = verifiers.ClientConfig(api_base_url=base_url, api_key_var="OPENAI_API_KEY")
    output = await env.run_rollout((val if name == "val" else train)[row], client, "policy", task["sampling"])
    if output.get("error"):
        raise SystemExit(f"the environment failed: {output['error']}")
    extra = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
    return {"reward": float(output["reward"]), "extra": extra}


def main() -> None:
    env_id, *more = sys.argv[1:]
    task, base_url = json.loads(os.environ["RLCTL_TASK"]), os.environ["OPENAI_BASE_URL"]
    result = asyncio.run(rollout(env_id, json.loads(more[0]) if more else {}, task, base_url))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
