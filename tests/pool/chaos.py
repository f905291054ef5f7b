"""Load on a pool while processes are killed and started again; then the books are checked."""

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from rlctl.wire.frames import read_ended
from rlctl.wire.messages import (
    Ack,
    Busy,
    CompleteTrajectory,
    FetchBatch,
    GetStatistics,
    OpenGroup,
    SubmitScores,
    SubmitSteps,
    TakeUnscored,
)
from rlctl.wire.samples import Score
from rlctl.wire.sockets import Ask
from tests.pool.make import step
from tests.pool.process import PoolProcess


class Mortal(Protocol):
    """A process that can be killed and started again."""

    def kill(self) -> None: ...

    def start(self) -> object: ...


async def chaos(pool: PoolProcess, victims: Sequence[Mortal], kills: int, seed: int) -> None:
    """Kill and restart under load; what was acknowledged is there once, sums match, counters equal the traffic."""
    rng = random.Random(seed)
    ask = Ask(pool.url, retry_s=0.2)
    running = True
    acknowledged: set[tuple[str, int]] = set()
    trained: list[str] = []

    async def agent(number: int) -> None:
        episode = 0
        while running:
            uid = f"{number}-{episode}"
            episode += 1
            if isinstance(await ask.ask(OpenGroup(uid, [uid], wait_s=1)), Busy):
                continue
            for index in range(3):
                await ask.ask(SubmitSteps([step(uid, index, tokens=50)]))
                acknowledged.add((uid, index))
            await ask.ask(CompleteTrajectory(uid, 3))

    async def scorer() -> None:
        while running:
            taken = (await ask.ask(TakeUnscored(wait_s=0.2))).trajectories
            await ask.ask(SubmitScores([Score(t.uid, 1.0) for t in taken]))

    async def trainer() -> None:
        number = 0
        while running:
            number += 1
            batch = await ask.ask(FetchBatch(2, wait_s=0.2, lease=f"lease-{number}"))
            uids = [t.uid for g in batch.groups for t in g.trajectories]
            if uids:
                assert all([s.step_index for s in t.steps] == [0, 1, 2] for g in batch.groups for t in g.trajectories)
                done = await ask.ask(Ack(batch.lease, dict.fromkeys(uids, "trained")))
                assert done.accepted + done.duplicate == len(uids)
                trained.extend(uids)

    tasks = [asyncio.create_task(main) for main in (*(agent(i) for i in range(8)), scorer(), trainer())]
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        victim = rng.choice(victims)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
    await asyncio.sleep(0.3)
    running = False
    await asyncio.gather(*tasks)
    while batch := (await ask.ask(FetchBatch(1, wait_s=0.3, lease=f"rest-{len(trained)}"))).groups:
        trained.append(batch[0].trajectories[0].uid)
    values = (await ask.ask(GetStatistics())).values
    ask.close()
    pool.stop()
    ended = [one for _, one in read_ended(pool.directory / "trajectories")]
    assert len(trained) == len(set(trained)) > 0, "a sample was trained twice"
    assert [one.number for one in ended] == list(range(1, len(ended) + 1))
    assert values["train.trained"] == len({one.trajectory.uid for one in ended}) == len(ended)
    assert values["train.created"] == values["train.trained"] + values["train.open"]
    assert values["steps"] == len(acknowledged), "every acknowledged step once, and none that nobody sent"
    unscored = values["queue_unscored"] + values["queue_ready"]
    stored = {(s.trajectory_uid, s.step_index) for one in ended for s in one.trajectory.steps}
    assert stored <= acknowledged
    assert values["resident_steps"] == len(acknowledged - stored)
    assert unscored <= values["train.open"]
