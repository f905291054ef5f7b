"""`rlctl gateway`: the process.

    agent --HTTP--> app --> route --> calls --> session (exact prompt) --> upstream --HTTP--> engine
                                        |
                                        +--> recorder --ZeroMQ--> pool      (reply only after its acknowledgement)

Beside it run: engine health checks, the recorder's sending loop, the sweep of silent trajectories, the metrics rows.
With gateway.workers above 1 this process only watches over that many which do all of it (workers/parent.py).
"""

import asyncio
import gc
import logging
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.gateway.calls import Calls, Counts
from rlctl.gateway.door.keys import Keys
from rlctl.gateway.door.serving import Server
from rlctl.gateway.routes.app import App, write_rows
from rlctl.gateway.routes.episodes import EpisodeRoutes
from rlctl.gateway.routes.model import ModelRoutes
from rlctl.gateway.routing.upstream import Upstream
from rlctl.gateway.sampling import Limits
from rlctl.gateway.sessions.pictures import Pictures
from rlctl.gateway.sessions.record import Recorder
from rlctl.gateway.sessions.trajectories import Trajectories
from rlctl.gateway.text import folder
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.template import ChatTemplate
from rlctl.gateway.tracing import configured
from rlctl.gateway.workers.handover import Handover
from rlctl.gateway.workers.parent import Reports, Workers
from rlctl.gateway.workers.siblings import Siblings
from rlctl.gateway.workers.worker import Worker
from rlctl.telemetry import logs, process
from rlctl.telemetry.metrics import Metrics
from rlctl.wire.sockets import Ask

log = logging.getLogger(__name__)
ROW_EVERY_S = 5.0
SWEEP_EVERY_S = 5.0


def main(config: Config, tokenizer_path: str = "", reward_url: str = "") -> None:
    """Run until SIGTERM."""
    logs.setup("gateway")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    files = folder.read(tokenizer_path or config.model_dir, config.model.revision)
    if not config.engine.urls:
        raise ConfigError("engine.urls is empty: give the gateway its engines (--engines HOST:PORT,...)")
    listener = listen(config.gateway.host, config.gateway.port)

    def work(worker: Worker, reports: Reports | None) -> None:
        gc.freeze()  # what was imported is never searched again
        gc.set_threshold(10_000, 50, 50)
        with asyncio.Runner(loop_factory=_loop) as runner:
            serving = serve(config, files, reward_url, listener, worker, reports)
            runner.run(process.until_signal(serving, *([_orphaned(os.getppid(), worker)] if reports else [])))

    if config.gateway.workers == 1:
        work(Worker(), None)
    else:
        rows = Metrics(config.run_dir, "gateway")
        url = _url(config, listener)
        workers = Workers(config.gateway.workers, work, rows, ROW_EVERY_S)
        workers.run(lambda: _serving(config, url))


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _orphaned(parent: int, worker: Worker) -> None:
    """Returns when the parent is gone: nobody would end this worker."""
    while os.getppid() == parent:  # noqa: ASYNC110  # nothing tells it
        await asyncio.sleep(1.0)
    log.error("the parent process is gone")
    shutil.rmtree(Path(worker.addresses[worker.index]).parent, ignore_errors=True)  # as the parent would have done


def _url(config: Config, listener: socket.socket) -> str:
    return f"http://{config.gateway.host}:{listener.getsockname()[1]}"


def _serving(config: Config, url: str) -> None:
    log.info("serving on %s", url)
    process.announce(config.run_dir, "gateway", url)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; ConfigError when the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"gateway: cannot listen on {host}:{port}: {error.strerror}; set gateway.port") from None
    return listener


def limits(config: Config, images: bool = False) -> Limits:
    """`images`: the model takes them."""
    return Limits(
        config.rollout.temperature,
        config.rollout.top_p,
        config.response_length,
        config.prompt_length,
        config.model.max_context,
        config.gateway.max_images if images else 0,
    )


class Parts:
    """What one process is made of, put together; nothing runs yet. Needs a running event loop."""

    def __init__(self, config: Config, files: folder.ModelFiles, reward_url: str, worker: Worker) -> None:
        settings = config.gateway
        self.ask = Ask(config.pool_url, retry_s=1.0)
        self.recorder = Recorder(self.ask, settings.max_waiting_steps)
        self.tracing = configured(settings.otlp_endpoint)
        self.upstream = Upstream(
            config.engine.urls, settings.timeout_s, settings.max_engine_waiting, settings.max_kv_usage, self.tracing
        )
        self.trajectories = Trajectories(self.recorder, self.upstream.router.forget, settings.session_timeout_s)
        self.calls = Calls(
            self.trajectories,
            self.upstream,
            self.recorder,
            Codec(files.tokenizer_json),
            limits(config, files.images),
            Counts(),
            settings.timeout_s,
            Pictures(config.run_dir / "images", settings.max_image_pixels),
            self.tracing,
        )
        self.siblings = Siblings(worker, settings.timeout_s)
        self.access = Metrics(config.run_dir, "access") if settings.access_log else None
        keys = Keys(settings.admin_key())
        models = ModelRoutes(self.calls, ChatTemplate(files.chat_template, files.special_tokens))
        episodes = EpisodeRoutes(self.calls, keys, reward_url, self.siblings, settings.public_url)
        self.app = App(self.calls, models, episodes, keys, settings, self.access, self.siblings, self.tracing)

    async def catch_up(self, worker: Worker) -> None:
        """Learn from pool and siblings what was before this process."""
        earlier = await self.recorder.open_steps()
        self.trajectories.earlier = {uid: steps for uid, steps in earlier.items() if worker.owns(uid)}
        if worker.restarted:
            self.upstream.router.become(await self.siblings.engines())

    async def close(self) -> None:
        self.siblings.close()
        await self.upstream.close()
        if self.access:
            self.access.close()
        self.ask.close()
        if self.tracing:
            self.tracing.close()


async def serve(
    config: Config,
    files: folder.ModelFiles,
    reward_url: str,
    listener: socket.socket,
    worker: Worker = Worker(),
    reports: Reports | None = None,
) -> None:
    """Everything that runs in the event loop, until cancelled. One of several workers has `reports` for its parent."""
    parts = Parts(config, files, reward_url, worker)
    handover = Handover(worker) if worker.count > 1 else None
    server = Server(parts.app, [listener, worker.listener] if worker.listener else [listener], handover)
    rows = reports or Metrics(config.run_dir, "gateway")
    url = _url(config, listener)
    serving = reports.serving if reports else lambda: _serving(config, url)
    try:
        await parts.catch_up(worker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(parts.recorder.run())
            tasks.create_task(parts.upstream.watch())
            tasks.create_task(parts.trajectories.sweep(SWEEP_EVERY_S))
            tasks.create_task(write_rows(parts.calls, rows, ROW_EVERY_S))
            tasks.create_task(_announce(server, handover, serving))
            await server.until_cancelled()
    finally:
        if handover:
            handover.close()
        await parts.close()


async def _announce(server: Server, handover: Handover | None, serving: Callable[[], None]) -> None:
    await server.listening.wait()
    if handover:
        handover.take(server.door)
    serving()
