"""`rlctl pool`: the store as a process.

ZeroMQ questions --> [wait until it can be honoured] --> Commits (journal or Redis, then store) --> reply
                       ^                                     |
                       +------ waiters looked at again ------+--> trajectories/ (what ended), metrics/pool.jsonl
"""

import asyncio
import gc
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import uvloop

from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.pool.commits import Commits
from rlctl.pool.ended import EndedLog
from rlctl.pool.live import Broadcast
from rlctl.pool.state import Refusal, Rules
from rlctl.pool.storage.journal import Durable
from rlctl.pool.storage.opening import open_journal
from rlctl.pool.waiting import Waiters
from rlctl.telemetry import logs
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.process import announce, until_signal
from rlctl.wire.frames import Buffer
from rlctl.wire.live import Publisher
from rlctl.wire.messages import (
    Abandon,
    Ack,
    Batch,
    Busy,
    CompleteTrajectory,
    EndRun,
    Feedback,
    FetchBatch,
    GetOpenSteps,
    GetStatistics,
    Hold,
    Nack,
    OpenGroup,
    OpenSteps,
    Reply,
    Request,
    SetPolicyVersion,
    Statistics,
    SubmitScores,
    SubmitSteps,
    TakeFinished,
    TakeUnscored,
    Unscored,
)
from rlctl.wire.samples import TRAIN
from rlctl.wire.sockets import Answer, decode_request

log = logging.getLogger(__name__)
METRICS_EVERY_S = 5.0
MB = 1 << 20


def rules(config: Config) -> Rules:
    """What the configuration says about groups, leases and time."""
    pool = config.pool
    return Rules(
        max_in_flight=(pool.max_staleness + 1) * config.train.groups_per_step,
        max_staleness=pool.max_staleness,
        min_group_size=pool.min_group_size,
        group_timeout_s=pool.group_timeout_s,
        lease_timeout_s=pool.lease_timeout_s,
        score_timeout_s=pool.score_timeout_s,
        order=pool.order,
        max_queue_size=pool.max_queue_size,
        evict=pool.evict,
        feedback_weight=pool.feedback_weight,
    )


class Asked(NamedTuple):
    """A question, and the message it came in: what the journal keeps."""

    request: Request
    received: Buffer


def asked(message: Buffer) -> Asked:
    """DecodeError if it is no request."""
    return Asked(decode_request(message), message)


class Service:
    """Answers every PoolRequest; requests that cannot be honoured yet wait as long as they allow."""

    def __init__(self, journal: Durable, ended: EndedLog, publisher: Publisher, config: Config) -> None:
        self.store = journal.recover(rules(config))
        self.live = Broadcast(publisher, self.store.statistics)
        journal_bytes = config.pool.journal_mb * MB
        self.commits = Commits(self.store, journal, ended, journal_bytes, self._changed, ended_too=self.live.ended)
        self._slots, self._ready, self._unscored = Waiters(), Waiters(), Waiters()
        self._trainers = 0
        """How many trainers began anew: a batch that one of them waited for is not lent to it after its death."""
        commit: Callable[[Any, Buffer], Awaitable[Reply]] = self.commits.submit
        self._handlers: dict[type, Callable[[Any, Buffer], Awaitable[Reply]]] = {
            SubmitSteps: commit,
            CompleteTrajectory: commit,
            SubmitScores: commit,
            Ack: commit,
            Nack: self._nack,
            Hold: commit,
            SetPolicyVersion: commit,
            EndRun: commit,
            Abandon: commit,
            Feedback: commit,
            OpenGroup: self._open_group,
            FetchBatch: self._fetch,
            TakeUnscored: self._take_unscored,
            TakeFinished: self._take_finished,
            GetStatistics: self._statistics,
            GetOpenSteps: self._open_steps,
        }

    def handle(self, question: Asked) -> Awaitable[Reply]:
        handler = self._handlers.get(type(question.request))
        if handler is None:
            raise Refusal(f"the pool does not answer {type(question.request).__name__}")
        return handler(question.request, question.received)

    def _changed(self) -> None:
        """After every batch of events and every tick."""
        self.store.ledger.unscored.expire(time.time())
        self._slots.wake(self.store.ledger.slots)
        self._ready.wake(len(self._ready) if self.store.ledger.ready else 0)
        self._unscored.wake(min(1, self.store.ledger.unscored.free))

    async def _open_group(self, request: OpenGroup, received: Buffer) -> Reply:
        until = asyncio.get_running_loop().time() + request.wait_s
        while True:
            reply: Reply = Busy("no free slot")
            if request.channel != TRAIN or self.store.ledger.slots > 0 or self._known(request):
                reply = await self.commits.submit(request, received)
            if not isinstance(reply, Busy) or not await self._slots.wait(until):
                return reply

    def _known(self, request: OpenGroup) -> bool:
        state = self.store.state
        return any(uid in state.trajectories or uid in state.tombstones for uid in request.trajectory_uids)

    async def _fetch(self, request: FetchBatch, received: Buffer) -> Reply:
        until, asker = asyncio.get_running_loop().time() + request.wait_s, self._trainers
        if not request.lease:
            request, received = msgspec.structs.replace(request, lease=uuid.uuid4().hex), b""
        while True:
            reply: Reply = Batch(policy_version=self.store.state.version)
            if asker != self._trainers:
                return reply
            ready = self.store.ledger.ready >= request.groups or request.lease in self.store.state.leases
            if ready or request.channel != TRAIN:
                reply = await self.commits.submit(request, received)
            if (isinstance(reply, Batch) and reply.lease) or not await self._ready.wait(until):
                return reply

    async def _nack(self, request: Nack, received: Buffer) -> Reply:
        if not request.lease:
            self._trainers += 1
            self._ready.wake(len(self._ready))
        return await self.commits.submit(request, received)

    async def _take_unscored(self, request: TakeUnscored, _: Buffer) -> Reply:
        until = asyncio.get_running_loop().time() + request.wait_s
        while True:
            taken = self.store.scores.take_unscored(request.limit, time.time(), request.steps)
            if self.store.ledger.unscored.free:
                self._unscored.wake(1)
            if taken or not await self._unscored.wait(until):
                return Unscored(taken)

    async def _take_finished(self, request: TakeFinished, _: Buffer) -> Reply:
        return await self.commits.ended.read(request.cursor, request.limit)

    async def _statistics(self, *_: object) -> Reply:
        return Statistics(self.store.statistics(), self.live.port)

    async def _open_steps(self, *_: object) -> Reply:
        return OpenSteps(self.store.intake.open_steps())

    async def report(self, metrics: Metrics) -> None:
        """A row of numbers every few seconds, and one at the end."""
        try:
            while True:
                await asyncio.sleep(METRICS_EVERY_S)
                self._write(metrics)
        finally:
            self._write(metrics)

    def _write(self, metrics: Metrics) -> None:
        commits = self.commits
        metrics.write(
            **self.store.statistics(),
            **commits.phases.values(),
            commits=commits.commits,
            waiting_open=len(self._slots),
            process_cpu_s=round(time.process_time(), 3),
        )


def main(config: Config) -> None:
    """Serve until SIGTERM."""
    logs.setup("pool")
    if not config.run.dir:
        raise ConfigError("run.dir is not set: the pool keeps its journal there (-s run.dir=DIR)")
    sys.setswitchinterval(0.0005)  # the journal's thread must get the interpreter back soon after fdatasync
    gc.set_threshold(100_000, 50, 100)  # steps form no cycles; scanning a million of them for some is wasted
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: Config) -> None:
    journal = await open_journal(config)
    if journal is None:
        return
    ended = EndedLog(config.run_dir / "trajectories", config.pool.trajectories_mb * MB)
    metrics = Metrics(config.run_dir, "pool")
    answer = Answer(config.pool.host, config.pool.port)  # first: the system's choice below could be this very port
    publisher = Publisher(config.pool.host, config.pool.live_port)
    service = Service(journal, ended, publisher, config)
    try:
        log.info("listening on %s", answer.url)
        announce(config.run_dir, "pool", answer.url)
        beside = (service.commits.run(), service.live.run(), service.report(metrics), journal.keep())
        await until_signal(answer.serve(service.handle, asked), *beside)
    finally:
        publisher.close()
        answer.close()
        metrics.close()
        ended.close()
        journal.close()
