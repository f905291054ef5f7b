"""The rollout process.

tasks (instances.stream) --OpenGroup--> pool            waits here while enough groups are in flight
     group_size episodes --chat--> gateway --> engine   (agents.choose)
     end of episode --complete_trajectory--> gateway --> pool

trainer --Evaluate--> this process --> Evaluated        same agents, held-out instances, channel "val"
"""

import asyncio
import logging
import socket

from rlctl.agents.client import Client
from rlctl.config import Config
from rlctl.errors import RlctlError, WireError
from rlctl.rollout.evaluate import Evaluator
from rlctl.rollout.groups import Groups
from rlctl.rollout.instances import stream, worlds
from rlctl.rollout.tally import Tally
from rlctl.telemetry import logs
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.process import announce, until_signal
from rlctl.wire.messages import (
    Abandon,
    Evaluate,
    Evaluated,
    GetStatistics,
    Refused,
    Reply,
    Request,
)
from rlctl.wire.sockets import Answer, Ask

log = logging.getLogger(__name__)
METRICS_EVERY_S = 2.0


def main(config: Config) -> None:
    logs.setup("rollout")
    if not config.env:
        raise RlctlError("rollout needs at least one [[env]] in the configuration")
    asyncio.run(until_signal(serve(config)))


async def serve(config: Config) -> None:
    """Roll out and answer evaluations until cancelled."""
    control = Answer(config.rollout.host, config.rollout.port)
    pool = Ask(config.pool_url)
    tally = Tally()
    made = worlds(config)
    try:
        async with Client(config.rollout.timeout_s, config.rollout.retries, config.gateway.admin_key()) as client:
            owner = f"rollout@{socket.gethostname()}"
            lost = await pool.ask(Abandon(owner))
            if lost.accepted:
                log.warning("%d episodes of an earlier life of this process are given up", lost.accepted)
            drawn = await pool.ask(GetStatistics())
            tasks = stream(config, made, skip=int(drawn.values.get("train.groups", 0)))
            desk = Desk(Evaluator(config, made, client, pool))
            async with asyncio.TaskGroup() as group:
                group.create_task(control.serve(desk.answer))
                group.create_task(Groups(config, client, pool, tally, owner).run(tasks))
                group.create_task(report(config, tally))
                announce(config.run_dir, "rollout", control.url)
    finally:
        for one in made.values():
            await one.agent.close()
        control.close()
        pool.close()


class Desk:
    """Answers requests; a question asked again while its evaluation runs (same `run` key) waits for the same result."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._results: dict[str, asyncio.Task[Evaluated]] = {}

    async def answer(self, request: Request) -> Reply:
        if not isinstance(request, Evaluate):
            return Refused(f"the rollout process answers Evaluate, not {type(request).__name__}")
        key = request.run or repr(request)
        if key not in self._results:
            self._results[key] = asyncio.create_task(self._evaluate(request))
        try:
            return await asyncio.shield(self._results[key])
        except RlctlError as error:
            del self._results[key]
            raise WireError(str(error)) from error

    async def _evaluate(self, request: Evaluate) -> Evaluated:
        return Evaluated(await self._evaluator.run(request))


async def report(config: Config, tally: Tally) -> None:
    metrics = Metrics(config.run_dir, "rollout")
    try:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            metrics.write(**tally.row())
    finally:
        metrics.write(**tally.row())
        metrics.close()
