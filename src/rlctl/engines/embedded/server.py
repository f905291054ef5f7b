"""Main of the embedded engine: one process, one model, one HTTP address.

load model ---> listen ---> announce ---> [ uvicorn | step loop | metrics ] ---SIGTERM---> stop
"""

import asyncio
import logging
import os
import socket
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from rlctl.config import Config
from rlctl.engines.embedded.app import App
from rlctl.engines.embedded.build import build
from rlctl.engines.embedded.measure import Measure
from rlctl.engines.embedded.serving import Serving
from rlctl.errors import ConfigError
from rlctl.models.load import load_tokenizer
from rlctl.telemetry import logs
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.process import announce, until_signal

log = logging.getLogger(__name__)


def main(config: Config, index: int = 0) -> None:
    """Serve until SIGTERM or SIGINT; does not return."""
    name = f"engine-{index}"
    logs.setup(name)
    uvicorn_loop = uvicorn.Config(app=_nothing, log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=uvicorn_loop) as runner:
        runner.run(_serve(config, index, name))
    logging.shutdown()
    os._exit(0)  # everything is closed; taking torch's modules apart would cost a second


async def _serve(config: Config, index: int, name: str) -> None:
    listening = listen(config, index)
    if config.model.init and not config.run_dir.joinpath("model").is_dir():
        raise ConfigError(f"{config.model_dir}: no model there yet; `rlctl up` builds it before it starts the engine")
    tokenizer = load_tokenizer(config.model_dir, config.model.trust_remote_code, config.model.revision)
    generator, texts = build(config, tokenizer, seed=config.run.seed + index)
    serving = Serving(generator)
    measure = Measure(generator)
    app = App(serving, texts, measure, config.model_dir)
    host, port = listening.getsockname()[:2]
    url = f"http://{host}:{port}"
    log.info("serving on %s", url)
    announce(config.run_dir, name, url)
    await until_signal(
        listen_and_serve(app, listening),
        serving.run(),
        measure.report(Metrics(config.run_dir, name)),
    )


def listen(config: Config, index: int) -> socket.socket:
    """A listening socket at `engine.urls[index]`, or at a free port of `engine.host`; ConfigError when it is taken."""
    address = urlsplit(config.engine.urls[index]) if config.engine.urls else None
    host = (address.hostname if address else None) or config.engine.host
    port = (address.port if address else None) or 0
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ConfigError(f"engine.urls[{index}]: cannot listen on {host}:{port}: {error.strerror}") from error
    listening.setblocking(False)
    return listening


async def listen_and_serve(app: Any, listening: socket.socket) -> None:
    """uvicorn on an open socket until cancelled; signals stay ours."""
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(settings)
    settings.load()
    server.lifespan = settings.lifespan_class(settings)
    await server.startup(sockets=[listening])
    try:
        await server.main_loop()
    finally:
        await server.shutdown(sockets=[listening])


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """uvicorn.Config wants an application even when it is only asked for its event loop."""
