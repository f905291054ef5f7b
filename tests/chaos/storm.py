"""Agents under load while pool, reward, gateway, trainer (and Redis) are killed at random moments and started again.

    agents (here) --OpenGroup--> pool       agents --HTTP--> gateway --> upstream (here, trivial, never killed)
    gateway --Steps--> pool <--scores-- reward        pool --leases--> trainer stub --> weights.json
    pool --journal--> disk, or a redis-server of its own

Agents repeat what failed until it succeeds, as an HTTP client does. At the end the trainer takes what is left.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from rlctl.wire.arrays import unpack_ids
from rlctl.wire.frames import read_ended
from rlctl.wire.messages import Busy, GetStatistics, OpenGroup
from rlctl.wire.ports import free_port
from rlctl.wire.samples import Ended
from rlctl.wire.sockets import Ask
from tests.chaos.components import Component
from tests.chaos.upstream import Upstream
from tests.pool.redis_server import RedisServer

GROUP = 2
TURNS = 3
GIVE_UP_S = 240.0
BREATH = 10
"""Kills between two waits for progress."""
PRESET = """
[run]
dir = "{folder}"
[model]
path = "{folder}/model"
max_context = 512
[engine]
urls = ["{engine}"]
[pool]
port = {pool}
url = "{redis}"
redis_wait_s = 60
score_timeout_s = 2
journal_mb = 1
[gateway]
port = {gateway}
[rollout]
max_tokens = 16
[train]
groups_per_step = 4
[reward.env]
fn = "env"
[reward.form]
fn = "format"
weight = -0.25
{more}
"""


class Storm:
    """One run; `answered` and `completed` are what the outside world was promised."""

    def __init__(self, folder: Path, seed: int, every: int, agents: int = 8, redis: RedisServer | None = None) -> None:
        """`every`: steps from checkpoint to checkpoint. `redis`: not started yet; it is killed like the rest."""
        self.folder, self.every, self.agents = folder, every, agents
        self.dice = random.Random(seed)
        self.ports = {"pool": free_port(), "gateway": free_port()}
        self.parts: dict[str, Component] = {"redis": Component("redis", redis.argv, folder)} if redis else {}
        self.urls = {"redis": redis.url if redis else ""}
        self.answered: dict[str, list[int]] = {}
        """Trajectory -> numbers of the answers its agent has got."""
        self.completed: dict[str, float] = {}
        """Trajectory -> the reward its agent gave when the end was confirmed."""
        self.errors: Counter[str] = Counter()
        self._going_on = True

    async def start(self, more: str = "") -> None:
        """`more`: further TOML for all components."""
        from rlctl.config.learning import Tiny
        from rlctl.models.tiny import build_tiny

        build_tiny(self.folder / "model", Tiny(hidden_size=32, layers=1, heads=1, mlp=32), max_context=512, seed=0)
        self.upstream = await Upstream(self.folder / "model").start()
        preset = self.folder / "preset.toml"
        preset.write_text(
            PRESET.format(folder=self.folder, engine=self.upstream.url, more=more, **self.ports, **self.urls)
        )
        for name in ("pool", "gateway", "reward"):
            self.parts[name] = self._part(name, ["-m", "rlctl", name, "--config", str(preset)])
        stub = ["-m", "tests.chaos.trainer_stub", str(self.folder), str(self.every)]
        self.parts["trainer"] = self._part("trainer", stub)
        self.ask = Ask(f"tcp://127.0.0.1:{self.ports['pool']}", retry_s=0.3)
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GIVE_UP_S))

    def _part(self, name: str, argv: list[str]) -> Component:
        return Component(name, [sys.executable, *argv], self.folder)

    async def blow(self, kills: int, pause_s: float) -> dict[str, Any]:
        """The whole storm; a report in numbers. `pause_s`: mean time between two kills."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for part in self.parts.values():
                tasks.create_task(part.keep())
            agents = [tasks.create_task(self._agent(number)) for number in range(self.agents)]
            try:
                for number in range(kills):
                    if number % BREATH == 0:
                        await self._some_more_groups()
                    await self._kill_one()
                    await asyncio.sleep(self.dice.uniform(0.2, 1.8) * pause_s)
                self._going_on = False
                await asyncio.wait_for(asyncio.gather(*agents), GIVE_UP_S)
                values = await self._drained()
                await self._standing()
            finally:
                codes = {name: await self.parts[name].stop() for name in reversed(self.parts)}  # Redis last
                self.ask.close()
                await self.http.close()
                await self.upstream.stop()
        return {
            "seconds": round(time.monotonic() - began, 1),
            "kills": {name: part.kills for name, part in self.parts.items()},
            "trajectories": len(self.completed),
            "answers": sum(map(len, self.answered.values())),
            "calls of the engine": len(self.upstream.answers),
            "attempts to learn": len((self.folder / "attempts.txt").read_text().split()),
            "agents' requests that failed": dict(self.errors),
            "exit codes": codes,
            "statistics": values,
        }

    async def _kill_one(self) -> None:
        """Any that runs, also while it is starting."""
        for _ in range(1000):
            if self.dice.choice(list(self.parts.values())).kill():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"nothing runs\n{self._logs()}")

    async def _some_more_groups(self) -> None:
        """Wait until a few groups more were played, so that the kills hit a system at work also on a slow machine."""
        deadline, enough = time.monotonic() + GIVE_UP_S, len(self.completed) + self.agents * GROUP
        while len(self.completed) < enough:
            assert time.monotonic() < deadline, self._logs()
            await asyncio.sleep(0.05)

    async def _drained(self) -> dict[str, float]:
        """The trainer takes what is left, a group at a time; the pool's numbers when nothing is."""
        (self.folder / "drain").touch()
        self.parts["trainer"].kill()
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            values: dict[str, float] = (await self.ask.ask(GetStatistics())).values
            if not values["train.open"]:
                await asyncio.sleep(0.6)  # the log of the ended is written after the answer
                return values
            assert time.monotonic() < deadline, f"{values}\n{self._logs()}"
            await asyncio.sleep(0.1)

    async def _standing(self) -> None:
        """What the last kill has brought down is up again: only then can it end in order."""
        deadline = time.monotonic() + GIVE_UP_S
        for name in ("pool", "gateway", "reward"):
            said = self.folder / "components" / f"{name}.json"
            while json.loads(said.read_text())["pid"] != self.parts[name].pid:
                assert time.monotonic() < deadline, self._logs()
                await asyncio.sleep(0.05)

    def _logs(self) -> str:
        return "\n".join(f"--- {name}\n{part.log[-1500:]}" for name, part in self.parts.items())

    # ------------------------------------------------------------ agents

    async def _agent(self, number: int) -> None:
        group = 0
        while self._going_on:
            prompt = f"a{number}-g{group}"
            uids = [f"{prompt}-{i}" for i in range(GROUP)]
            opened = await self.ask.ask(OpenGroup(prompt, uids, env="storm", wait_s=0.5), GIVE_UP_S)
            if not isinstance(opened, Busy):
                group += 1
                await asyncio.gather(*(self._episode(uid, prompt) for uid in uids))

    async def _episode(self, uid: str, prompt: str) -> None:
        base = f"http://127.0.0.1:{self.ports['gateway']}/{uid}/{prompt}/v1"
        messages: list[dict[str, str]] = []
        self.answered[uid] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"turn {turn}"})
            _, body = await self._post(f"{base}/chat/completions", {"messages": messages}, {200})
            said = body["choices"][0]["message"]["content"]
            self.answered[uid].append(int(said))
            messages.append({"role": "assistant", "content": said})
        reward = float(self.dice.randint(0, 9))
        facts = {"env_reward": reward}
        status, body = await self._post(f"{base}/complete_trajectory", {"facts": facts}, {200, 404, 409})
        assert status == 200 or "completed" in str(body) or "not_found" in str(body), (status, body)
        self.completed[uid] = reward

    async def _post(self, url: str, body: dict[str, Any], good: set[int]) -> tuple[int, Any]:
        """Again and again until the answer is a good one."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                async with self.http.post(url, json=body) as response:
                    answer = await response.json(content_type=None)
                    if response.status in good:
                        return response.status, answer
                    kind = f"{response.status} {str(answer)[:120]}"
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                kind = type(error).__name__
            self.errors[kind] += 1
            assert time.monotonic() < deadline, f"{url}: {dict(self.errors)}\n{self._logs()}"
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------ afterwards

    def check(self, values: dict[str, float]) -> None:
        """0 lost, 0 used twice, sums match; AssertionError says what is wrong."""
        weights = json.loads((self.folder / "weights.json").read_text())["used"]
        ended = [one for _, one in read_ended(self.folder / "trajectories")]
        self._nothing_twice(weights, ended)
        self._nothing_lost(weights, ended)
        outcomes = {name: n for name, n in values.items() if name.startswith("train.") and name != "train.created"}
        assert values["train.created"] == sum(outcomes.values()) == values["train.trained"] == len(self.completed)
        assert values["steps"] == sum(len(one.trajectory.steps) for one in ended)
        assert values["resident_steps"] == values["groups_in_flight"] == values["leases"] == 0

    def _nothing_twice(self, weights: dict[str, list[Any]], ended: list[Ended]) -> None:
        assert {uid: len(times) for uid, times in weights.items() if len(times) != 1} == {}, "used more than once"
        uids = [one.trajectory.uid for one in ended]
        assert len(uids) == len(set(uids)), "ended more than once"
        numbers = [
            number for one in ended for step in one.trajectory.steps if (number := self._number(step.response_ids))
        ]
        assert len(numbers) == len(set(numbers)), "an answer is in two Steps"

    def _nothing_lost(self, weights: dict[str, list[Any]], ended: list[Ended]) -> None:
        assert set(weights) == set(self.completed) == {one.trajectory.uid for one in ended}
        for one in ended:
            trajectory = one.trajectory
            stored = [self._number(step.response_ids) for step in trajectory.steps]
            assert set(self.answered[trajectory.uid]) <= set(stored), f"{trajectory.uid} lacks an answered Step"
            assert [step.step_index for step in trajectory.steps] == list(range(len(stored)))
            assert (one.outcome, trajectory.reward) == ("trained", self.completed[trajectory.uid])
            (used,) = weights[trajectory.uid]
            assert used == {"steps": [self.upstream.answers[n] for n in stored], "reward": trajectory.reward}

    def _number(self, response: bytes) -> int:
        """The number of the answer with these ids."""
        if not hasattr(self, "_by_ids"):
            self._by_ids = {tuple(ids): number for number, ids in self.upstream.answers.items()}
        return self._by_ids[tuple(unpack_ids(response).tolist())]
