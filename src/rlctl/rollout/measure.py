"""`rlctl eval`: plays held-out instances against one model; every finished episode is a line of episodes.jsonl.

    Order (eval.json) -> instances x samples, without those played before -> agents -> episodes.jsonl -> results.json

The model is behind our own gateway (started for this evaluation), or any OpenAI endpoint (`base_url`).
"""

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

import msgspec

from rlctl.agents.client import GATEWAY_FIELDS, Client
from rlctl.config import Config
from rlctl.config.serving import Env
from rlctl.disk.files import write_text
from rlctl.envs.base import Instance
from rlctl.errors import ConfigError, RlctlError
from rlctl.rollout.evaluate import limits_of
from rlctl.rollout.instances import World, world
from rlctl.rollout.score import Played, result
from rlctl.telemetry import logs
from rlctl.telemetry.process import announce
from rlctl.wire.messages import OpenGroup
from rlctl.wire.samples import VAL
from rlctl.wire.sockets import Ask

EPISODES, ORDER, RESULTS = "episodes.jsonl", "eval.json", "results.json"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured; an evaluation goes on only with the same order."""

    envs: list[dict[str, Any]]
    """[[env]] tables, in full."""
    model: str
    """Folder or id; the name sent to `base_url`."""
    base_url: str = ""
    """Empty: our own engine."""
    api_key_env: str = ""
    """Name of the environment variable with the key of `base_url`."""
    episodes: int
    """Instances of every environment."""
    samples: int
    """Tries at each."""
    split: str
    temperature: float
    top_p: float
    max_tokens: int


def save(order: Order, folder: Path) -> None:
    """Write the order, or ConfigError when the folder holds another one."""
    path = folder / ORDER
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = msgspec.to_builtins(order)
        if changed := [name for name in now if before.get(name) != now[name]]:
            raise ConfigError(f"{folder} holds an evaluation with another {', '.join(changed)}; choose another --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(msgspec.to_builtins(order), indent=1) + "\n")


def played(folder: Path) -> list[Played]:
    """Episodes of this evaluation so far; a last line that is not whole is left out."""
    path = folder / EPISODES
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [msgspec.json.decode(line, type=Played) for line in lines if line.endswith("\n")]


def main(config: Config) -> None:
    """The process that plays against our own gateway; its order is in the run directory."""
    logs.setup("eval")
    order = msgspec.json.decode((config.run_dir / ORDER).read_bytes(), type=Order)
    announce(config.run_dir, "eval", "")
    asyncio.run(run(config, order, config.run_dir))


async def run(config: Config, order: Order, folder: Path) -> None:
    """Play what is missing, then write results.json."""
    worlds = [world(Env.model_validate(table)) for table in order.envs]
    key = os.environ.get(order.api_key_env, "") if order.api_key_env else ""
    if order.api_key_env and not key:
        raise ConfigError(f"the environment variable {order.api_key_env} with the API key is empty")
    done = {(row.env, row.index, row.sample) for row in played(folder) if not row.error}
    tasks = {one.tag: one.held_out(order.split, order.episodes) for one in worlds}
    fields = {"model": order.model} if order.base_url else GATEWAY_FIELDS
    key = key if order.base_url else config.gateway.admin_key()
    async with Client(config.rollout.timeout_s, config.rollout.retries, key, fields) as client:
        player = _Player(config, order, client, folder)
        try:
            await asyncio.gather(
                *(
                    player.play(one, index, sample, task)
                    for one in worlds
                    for index, task in enumerate(tasks[one.tag])
                    for sample in range(order.samples)
                    if (one.tag, index, sample) not in done
                )
            )
        finally:
            player.close()
            for one in worlds:
                await one.agent.close()
    _finish(order, worlds, tasks, folder)


class _Player:
    """Plays single episodes, `rollout.concurrency` at a time, and writes each down when it is over."""

    def __init__(self, config: Config, order: Order, client: Client, folder: Path) -> None:
        self._config, self._order, self._client = config, order, client
        self._gate = asyncio.Semaphore(config.rollout.concurrency)
        self._pool = None if order.base_url else Ask(config.pool_url)
        path = folder / EPISODES
        if path.is_file() and not path.read_bytes().endswith(b"\n"):  # cut off in the middle of a line
            whole = path.read_bytes()
            path.write_bytes(whole[: whole.rfind(b"\n") + 1])
        self._file = path.open("ab", buffering=0)

    async def play(self, world: World, index: int, sample: int, instance: Instance) -> None:
        order = self._order
        sampling: dict[str, Any] = {"temperature": order.temperature, "max_tokens": order.max_tokens}
        if order.temperature and order.top_p < 1:
            sampling["top_p"] = order.top_p
        async with self._gate:
            base_url = order.base_url.rstrip("/") or await self._open(world, instance)
            timeout_s = self._config.rollout.timeout_s
            call = world.call(base_url, instance, sample, sampling, timeout_s, recorded=self._pool is not None)
            facts = await world.agent.play(self._client, call)
        row = Played(
            world.tag,
            index,
            sample,
            instance.key,
            facts.success,
            facts.env_reward,
            len(facts.turn_rewards),
            facts.format_errors,
            facts.error,
        )
        self._file.write(msgspec.json.encode(row) + b"\n")

    async def _open(self, world: World, instance: Instance) -> str:
        """A trajectory of our gateway, outside of training."""
        assert self._pool is not None
        uid = f"eval-{uuid.uuid4().hex[:20]}"
        await self._pool.ask(OpenGroup(uid, [uid], VAL, world.tag, world.family.task(instance)))
        return f"{self._config.gateway_url}/{uid}/{uid}/v1"

    def close(self) -> None:
        self._file.close()
        if self._pool:
            self._pool.close()


def _finish(order: Order, worlds: list[World], tasks: dict[str, list[Instance]], folder: Path) -> None:
    rows = played(folder)
    errors = [row.error for row in rows if row.error]
    if len(errors) == len(rows):
        raise RlctlError(f"every episode failed, the first with: {errors[0]}")
    results = []
    for one in worlds:
        limits = limits_of(one, tasks[one.tag])
        own = [row for row in rows if row.env == one.tag]
        results.append(result(one.tag, own, limits.floor, limits.ceiling))
    whole = {"model": order.model, "temperature": order.temperature, "split": order.split, "results": results}
    write_text(folder / RESULTS, json.dumps(whole, indent=1) + "\n")
