"""One evaluation: fixed held-out instances; success with its standard error, floor and ceiling on the same ones."""

import asyncio
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.agents.client import Client
from rlctl.config import Config
from rlctl.config.serving import Eval
from rlctl.envs.base import Instance, Rate, horizon
from rlctl.errors import RlctlError
from rlctl.rollout.album import Album, Page
from rlctl.rollout.instances import World
from rlctl.wire.messages import Evaluate, GetStatistics, OpenGroup
from rlctl.wire.samples import VAL, EvalResult, Facts
from rlctl.wire.sockets import Ask


@dataclass(frozen=True)
class Limits:
    """What success has to be compared to; None where an environment cannot know it."""

    floor: float | None
    """Uniformly random play."""
    ceiling: float | None
    """Optimal play."""


class Evaluator:
    """Runs evaluations against the gateway; floors and ceilings are worked out once per set of instances."""

    def __init__(self, config: Config, worlds: dict[str, World], client: Client, pool: Ask) -> None:
        self._config = config
        self._worlds = worlds
        self._client = client
        self._pool = pool
        self._album = Album(config)
        self._limits: dict[tuple[str, str, int], Limits] = {}

    async def run(self, request: Evaluate) -> list[EvalResult]:
        """All configured evaluations, or the one asked for."""
        chosen = [one for one in self._config.eval or [Eval()] if not request.name or one.name == request.name]
        if not chosen:
            raise RlctlError(f"no [[eval]] is called {request.name!r}")
        return [await self._measure(one, request) for one in chosen]

    async def _measure(self, one: Eval, request: Evaluate) -> EvalResult:
        world = self._worlds[one.env] if one.env else next(iter(self._worlds.values()))
        episodes = request.episodes or one.episodes
        temperature = self._config.rollout.temperature if request.split == "train" else one.temperature
        tasks = world.held_out(request.split, episodes)
        limits = await self._compared_to(world, request.split, tasks)
        started = time.monotonic()
        gate = asyncio.Semaphore(self._config.rollout.concurrency)
        key = uuid.uuid4().hex[:12]
        series = one.name if request.split == "val" else f"{one.name}/{request.split}"
        facts = await asyncio.gather(
            *(
                self._episode(world, task, temperature, gate, Page(series, request.step, i, f"val-{key}-{i}"))
                for i, task in enumerate(tasks)
            )
        )
        errors = [fact.error for fact in facts if fact.error]
        if len(errors) == episodes:
            raise RlctlError(f"evaluation {one.name!r}: every episode failed, the first with: {errors[0]}")
        statistics = await self._pool.ask(GetStatistics())
        rate, error = rate_with_error([task.key for task in tasks], [float(fact.success) for fact in facts])
        return EvalResult(
            step=request.step,
            env=world.tag,
            name=series,
            temperature=temperature,
            episodes=episodes,
            failed=len(errors),
            success_rate=rate,
            success_se=error,
            mean_reward=sum(fact.env_reward for fact in facts) / episodes,
            mean_turns=sum(len(fact.turn_rewards) for fact in facts) / episodes,
            format_errors=sum(fact.format_errors for fact in facts) / episodes,
            floor=limits.floor,
            ceiling=limits.ceiling,
            policy_version=int(statistics.values.get("policy_version", 0)),
            seconds=time.monotonic() - started,
        )

    async def _episode(
        self, world: World, instance: Instance, temperature: float, gate: asyncio.Semaphore, page: Page
    ) -> Facts:
        uid = prompt = page.uid
        rollout = self._config.rollout
        async with gate:
            opened = OpenGroup(prompt, [uid], VAL, world.tag, world.family.task(instance))
            await self._pool.ask(opened)
            sampling = {"temperature": temperature, "max_tokens": rollout.max_tokens}
            if temperature:
                sampling["top_p"] = rollout.top_p
            base_url = f"{self._config.gateway_url}/{uid}/{prompt}/v1"
            call = world.call(base_url, instance, page.number, sampling, rollout.timeout_s)
            return await self._album.play(world, self._client, call, instance, page)

    async def _compared_to(self, world: World, split: str, tasks: Sequence[Instance]) -> Limits:
        key = (world.tag, split, len(tasks))
        if key not in self._limits:
            self._limits[key] = await asyncio.to_thread(limits_of, world, tasks)
        return self._limits[key]


def limits_of(world: World, tasks: Sequence[Instance]) -> Limits:
    """Success of random and of optimal play, averaged over the very instances that are evaluated."""
    actions = horizon(world.env)
    distinct = {task.key: task for task in tasks}
    floors = {key: world.family.floor(task, actions) for key, task in distinct.items()}
    ceilings = {key: world.family.ceiling(task, actions) for key, task in distinct.items()}
    return Limits(_mean([floors[task.key] for task in tasks]), _mean([ceilings[task.key] for task in tasks]))


def _mean(rates: Sequence[Rate | None]) -> float | None:
    known = [rate.value for rate in rates if rate is not None]
    return sum(known) / len(known) if len(known) == len(rates) else None


def rate_with_error(keys: Sequence[str], values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; episodes of one instance are not independent, so instances are the units.

    With m instances, instance means v_i and episode shares w_i (sum 1): se = sqrt(m/(m-1) sum w_i^2 (v_i - mean)^2).
    """
    groups: dict[str, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    mean = sum(values) / len(values)
    m = len(groups)
    if m < 2:
        return mean, 0.0
    spread = sum((len(g) / len(values)) ** 2 * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
    return mean, math.sqrt(m / (m - 1) * spread)
