"""Training episodes without end: a slot from the pool for every group, `group_size` episodes in it."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any

from rlctl.agents.client import Client
from rlctl.config import Config
from rlctl.rollout.album import Album
from rlctl.rollout.instances import Task
from rlctl.rollout.tally import Tally
from rlctl.wire.messages import Busy, GetStatistics, OpenGroup
from rlctl.wire.samples import TRAIN
from rlctl.wire.sockets import Ask

log = logging.getLogger(__name__)


class Groups:
    """Opens groups as fast as the pool admits them and plays their episodes, `rollout.concurrency` at a time."""

    def __init__(self, config: Config, client: Client, pool: Ask, tally: Tally, owner: str) -> None:
        self._owner = owner
        self._config = config
        self._client = client
        self._pool = pool
        self._tally = tally
        self._album = Album(config)
        self._gate = asyncio.Semaphore(config.rollout.concurrency)
        self._greedy_first = config.algo.advantage == "remax"
        """The first episode of a group is greedy: the others' baseline."""
        rollout = config.rollout
        self._sampling: dict[str, Any] = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "max_tokens": rollout.max_tokens,
        }

    async def run(self, tasks: Iterator[Task]) -> None:
        """Until cancelled. Begins when the first policy version is announced (after a warm start, if there is one)."""
        await self._policy()
        async with asyncio.TaskGroup() as episodes:
            for task in tasks:
                prompt_uid = f"{task.world.tag}-{task.position:08d}-{uuid.uuid4().hex[:8]}"
                uids = [f"{prompt_uid}-{i}" for i in range(self._config.rollout.group_size)]
                await self._open(prompt_uid, uids, task)
                for number, uid in enumerate(uids):
                    await self._gate.acquire()
                    episodes.create_task(self._episode(task, prompt_uid, uid, number))

    async def _policy(self) -> None:
        while True:
            statistics = await self._pool.ask(GetStatistics())
            if statistics.values.get("policy_version", -1) >= 0:
                return
            await asyncio.sleep(0.2)

    async def _open(self, prompt_uid: str, uids: list[str], task: Task) -> None:
        request = OpenGroup(
            prompt_uid=prompt_uid,
            trajectory_uids=uids,
            channel=TRAIN,
            env=task.world.tag,
            owner=self._owner,
            task={
                "instance": task.instance.key,
                "seed": str(task.instance.seed),
                "position": str(task.position),
                **task.world.family.task(task.instance),
            },
        )
        while isinstance(await self._pool.ask(request, timeout_s=300.0), Busy):
            self._tally.waited()

    async def _episode(self, task: Task, prompt_uid: str, uid: str, number: int) -> None:
        try:
            base_url = f"{self._config.gateway_url}/{uid}/{prompt_uid}/v1"
            sampling = self._sampling if number or not self._greedy_first else {**self._sampling, "temperature": 0.0}
            call = task.world.call(base_url, task.instance, number, sampling, self._config.rollout.timeout_s)
            page = self._album.training_page(task, number, uid)
            facts = await self._album.play(task.world, self._client, call, task.instance, page)
            self._tally.finished(task.world.tag, facts)
            if facts.error:
                log.warning("episode %s failed: %s", uid, facts.error)
        finally:
            self._gate.release()
