"""Which episodes are kept as pictures: the first of every evaluation, and of the first group of every Nth batch."""

import asyncio
from dataclasses import dataclass, replace

from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config import Config
from rlctl.envs.base import Instance
from rlctl.pictures import files
from rlctl.pictures.record import Recorder
from rlctl.rollout.instances import Task, World
from rlctl.wire.samples import TRAIN, Facts


@dataclass(frozen=True)
class Page:
    """Where an episode stands in the album."""

    series: str
    """Name of the [[eval]], or "train"."""
    step: int
    """Training step of an evaluation; of a training group, the batch it was drawn for (1, 2, ...)."""
    number: int
    uid: str


class Album:
    """Plays episodes, and keeps those that are wanted in the run directory (`monitor.pictures`)."""

    def __init__(self, config: Config) -> None:
        self._run_dir = config.run_dir
        self._wanted = config.monitor.pictures if config.run.dir else 0
        self._every = config.monitor.pictures_every
        self._batch = config.train.groups_per_step

    async def play(self, world: World, client: Client, call: Call, instance: Instance, page: Page | None) -> Facts:
        """The episode to its end; on paper where it has a page and is one of the first."""
        if page is None or page.number >= self._wanted:
            return await world.agent.play(client, call)
        recorder = Recorder(call.episode)
        facts = await world.agent.play(client, replace(call, episode=recorder))
        recorded = recorder.episode(
            facts,
            uid=page.uid,
            env=world.env.name,
            tag=world.tag,
            series=page.series,
            step=page.step,
            number=page.number,
            instance=instance.key,
        )
        await asyncio.to_thread(files.save, self._run_dir, recorded)
        return facts

    def training_page(self, task: Task, number: int, uid: str) -> Page | None:
        """Episode `number` of a training group; None unless the group opens a batch whose step is wanted."""
        step, place = divmod(task.position, self._batch)
        if place or not self._every or step % self._every:
            return None
        return Page(TRAIN, step + 1, number, uid)
