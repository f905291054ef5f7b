"""`rlctl gateway`: the process.

    agent --HTTP--> app --> route --> calls --> session (exact prompt) --> upstream --HTTP--> engine
                                        |
                                        +--> recorder --ZeroMQ--> pool      (reply only after its acknowledgement)

Beside it run: engine health checks, the recorder's sending loop, the sweep of silent trajectories, the metrics rows.
With gateway.workers above 1 this process only watches over that many which do all of it (workers/parent.py).
"""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.gateway.calls import Calls, Counts
from rlctl.gateway.door.accept import Door
from rlctl.gateway.door.guard import Guarded
from rlctl.gateway.door.keys import Keys
from rlctl.gateway.routes.app import App, write_rows
from rlctl.gateway.routes.episodes import EpisodeRoutes
from rlctl.gateway.routes.model import ModelRoutes
from rlctl.gateway.routing.upstream import Upstream
from rlctl.gateway.sampling import Limits
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


def limits(config: Config) -> Limits:
    return Limits(
        config.rollout.temperature,
        config.rollout.top_p,
        config.response_length,
        config.prompt_length,
        config.model.max_context,
    )


async def serve(
    config: Config,
    files: folder.ModelFiles,
    reward_url: str,
    listener: socket.socket,
    worker: Worker = Worker(),
    reports: Reports | None = None,
) -> None:
    """Everything that runs in the event loop, until cancelled. One of several workers has `reports` for its parent."""
    settings = config.gateway
    ask = Ask(config.pool_url, retry_s=1.0)
    recorder = Recorder(ask, settings.max_waiting_steps)
    tracing = configured(settings.otlp_endpoint)
    upstream = Upstream(
        config.engine.urls, settings.timeout_s, settings.max_engine_waiting, settings.max_kv_usage, tracing
    )
    trajectories = Trajectories(recorder, upstream.router.forget, settings.session_timeout_s)
    codec, counts = Codec(files.tokenizer_json), Counts()
    calls = Calls(trajectories, upstream, recorder, codec, limits(config), counts, settings.timeout_s, tracing)
    template = ChatTemplate(files.chat_template, files.special_tokens)
    access = Metrics(config.run_dir, "access") if settings.access_log else None
    keys = Keys(settings.admin_key())
    siblings = Siblings(worker, settings.timeout_s)
    episodes = EpisodeRoutes(calls, keys, reward_url, siblings, settings.public_url)
    app = App(calls, ModelRoutes(calls, template), episodes, keys, settings, access, siblings, tracing)
    handover = Handover(worker) if worker.count > 1 else None
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=functools.partial(Guarded, handover=handover),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            date_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        ),
        [listener, worker.listener] if worker.listener else [listener],
    )
    rows = reports or Metrics(config.run_dir, "gateway")
    url = _url(config, listener)
    serving = reports.serving if reports else lambda: _serving(config, url)
    try:
        earlier = await recorder.open_steps()
        trajectories.earlier = {uid: steps for uid, steps in earlier.items() if worker.owns(uid)}
        if worker.restarted:
            upstream.router.become(await siblings.engines())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recorder.run())
            tasks.create_task(upstream.watch())
            tasks.create_task(trajectories.sweep(SWEEP_EVERY_S))
            tasks.create_task(write_rows(calls, rows, ROW_EVERY_S))
            tasks.create_task(_announce(server, handover, serving))
            await server.until_cancelled()
    finally:
        if handover:
            handover.close()
        siblings.close()
        await upstream.close()
        if access:
            access.close()
        ask.close()
        if tracing:
            tracing.close()


async def _announce(server: "_Server", handover: Handover | None, serving: Callable[[], None]) -> None:
    await server.listening.wait()
    if handover:
        handover.take(server.door)
    serving()


class _Server(uvicorn.Server):
    """uvicorn inside our own signal handling (cancelling `run` is what stops it), with our own door."""

    def __init__(self, config: uvicorn.Config, listeners: list[socket.socket]) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.servers = []
        self.door = Door(listeners, self._protocol)

    def _protocol(self, first: bytes) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, first=first
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.door.open()
        self.started = True
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.door.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def until_cancelled(self) -> None:
        serving = asyncio.create_task(self.serve())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.should_exit = True
            await serving
            raise
