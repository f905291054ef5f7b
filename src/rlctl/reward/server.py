"""`rlctl reward`: scores what the pool hands out, and serves the same over HTTP. Run as many as you like.

    pool --TakeUnscored--> [decode responses] -> score(parts) --SubmitScores--> pool
    POST /score -------------------------------^   |        +--> metrics/reward.jsonl
                                                   +--> plain functions, sandbox, models

HTTP (JSON):
    POST /score   {"samples": [{"responses": [str], "task": {str: str}, "facts": {"env_reward": float, ...}}]}
               -> {"scores": [{"reward": float, "parts": {name: float}, "step_rewards": [float], "error": str}]}, in
                  the same order; 400 {"error": ...} for a body that is not of this form
    GET /health   {"status": "ok", "parts": [name], "sandbox": [what confines it here]}
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rlctl.config.root import Config
from rlctl.errors import RlctlError
from rlctl.reward.combine import Reward, build
from rlctl.reward.functions import Sample
from rlctl.reward.text import Decoder, load_decoder
from rlctl.sandbox import confine
from rlctl.telemetry import logs
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.phases import Phases
from rlctl.telemetry.process import announce, until_signal
from rlctl.wire.messages import SubmitScores, TakeUnscored
from rlctl.wire.samples import Score, Trajectory
from rlctl.wire.sockets import Ask

log = logging.getLogger(__name__)
METRICS_EVERY_S = 5.0
POOL_TIMEOUT_S = 120.0
"""Without an answer from the pool for this long, the process ends with an error."""


class ScoreRequest(msgspec.Struct, frozen=True):
    """Body of POST /score."""

    samples: list[Sample]


class Scorer:
    """Scores batches in a thread, so that a slow function does not stop the event loop; counts what it does."""

    def __init__(self, reward: Reward, decoder: Decoder | None) -> None:
        self.reward = reward
        self.phases = Phases()
        self.scored = 0
        self.parts: dict[str, tuple[int, float]] = {}
        """Part -> samples it has scored, and the sum of its values before the weight."""
        self._decoder = decoder
        self._said: set[str] = set()
        self._one_batch = threading.Lock()

    @property
    def needs_text(self) -> bool:
        return self._decoder is not None

    async def trajectories(self, batch: Sequence[Trajectory]) -> list[Score]:
        return await asyncio.to_thread(self._trajectories, batch)

    def _trajectories(self, batch: Sequence[Trajectory]) -> list[Score]:
        with self.phases("decode"):
            samples = [Sample(self._texts(one), one.task, one.facts) for one in batch]
        return self._score([one.uid for one in batch], samples)

    def _texts(self, trajectory: Trajectory) -> list[str]:
        return [self._decoder(step.response_ids) for step in trajectory.steps] if self._decoder else []

    async def samples(self, batch: Sequence[Sample]) -> list[Score]:
        return await asyncio.to_thread(self._score, [""] * len(batch), batch)

    def _score(self, uids: Sequence[str], samples: Sequence[Sample]) -> list[Score]:
        with self._one_batch, self.phases("score"):
            scores = self.reward.score(uids, samples)
            self.scored += len(scores)
        for one in scores:
            for name, value in one.parts.items():
                number, total = self.parts.get(name, (0, 0.0))
                self.parts[name] = number + 1, total + value
            if one.error:
                kind = ":".join(one.error.split(":")[:2])
                if kind not in self._said:
                    self._said.add(kind)
                    log.warning("%s (further ones of this kind are only counted)", one.error)
        return scores


async def consume(ask: Ask, scorer: Scorer) -> None:
    """Score what the pool hands out until cancelled."""
    while True:
        taken = await ask.ask(TakeUnscored(steps=scorer.needs_text), POOL_TIMEOUT_S)
        if taken.trajectories:
            scores = await scorer.trajectories(taken.trajectories)
            await ask.ask(SubmitScores(scores), POOL_TIMEOUT_S)


def application(scorer: Scorer) -> Starlette:
    """The HTTP face."""
    decode = msgspec.json.Decoder(ScoreRequest).decode
    means = confine.available() if scorer.reward.sandbox else []

    async def score_samples(request: HttpRequest) -> Response:
        try:
            body = decode(await request.body())
        except msgspec.DecodeError as error:
            return JSONResponse({"error": f"not a score request: {error}"}, status_code=400)
        scores = await scorer.samples(body.samples)
        names = ("reward", "parts", "step_rewards", "error")
        answer = [{name: getattr(one, name) for name in names} for one in scores]
        return JSONResponse({"scores": answer})

    async def health(request: HttpRequest) -> Response:
        del request
        names = [part.name for part in scorer.reward.parts]
        return JSONResponse({"status": "ok", "parts": names, "sandbox": means})

    return Starlette(routes=[Route("/score", score_samples, methods=["POST"]), Route("/health", health)])


async def report(scorer: Scorer, metrics: Metrics) -> None:
    """A row of numbers every few seconds, and one at the end."""

    def row() -> dict[str, Any]:
        cpu = round(time.process_time(), 3)
        return {
            "scored": scorer.scored,
            "errors": scorer.reward.counts(),
            "parts": {name: {"samples": n, "mean": total / n} for name, (n, total) in scorer.parts.items()},
            **scorer.phases.values(),
            "process_cpu_s": cpu,
        }

    try:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            metrics.write(**row())
    finally:
        metrics.write(**row())


def main(config: Config) -> None:
    """Score until SIGTERM."""
    logs.setup("reward")
    reward = build(config, config.run_dir / "reward" / "scores.sqlite" if config.run.dir else None)
    missing = {"landlock", "seccomp"} - set(confine.available())
    if reward.sandbox and missing:
        log.warning("no %s here: the sandbox limits time and memory only in part", " and no ".join(sorted(missing)))
    try:
        decoder = load_decoder(config.model_dir, config.model.revision) if reward.needs_text else None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, Scorer(reward, decoder)))
    finally:
        reward.close()


async def _serve(config: Config, scorer: Scorer) -> None:
    metrics = Metrics(config.run_dir if config.run.dir else None, "reward")
    listening = _listen(config.pool.host, config.pool.reward_port)
    server = uvicorn.Server(uvicorn.Config(application(scorer), log_config=None, access_log=False, lifespan="off"))
    ask = Ask(config.pool_url)
    url = "http://{}:{}".format(*listening.getsockname()[:2])
    announce(config.run_dir if config.run.dir else None, "reward", url)
    log.info("scoring %s; POST %s/score", ", ".join(part.name for part in scorer.reward.parts), url)
    try:
        await until_signal(consume(ask, scorer), _http(server, listening), report(scorer, metrics))
    finally:
        ask.close()
        metrics.close()
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise RlctlError(f"reward cannot listen on {host}:{port} (pool.reward_port): {error.strerror}") from error


async def _http(server: uvicorn.Server, listening: socket.socket) -> None:
    """uvicorn without its own signal handlers (`until_signal` has them)."""
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listening])
    try:
        await server.main_loop()
    finally:
        server.should_exit = True
        await server.shutdown(sockets=[listening])
