"""What a run needs before any process serves: the tiny model, and demonstrations for the warm start.

Each is made once, and gets its name when it is whole, so an interrupted run never leaves half of one.
"""

import logging
from pathlib import Path

from rlctl.config import Config
from rlctl.disk.folders import write_whole
from rlctl.telemetry import logs
from rlctl.up.planning.plan import builds_model, generates_demonstrations

log = logging.getLogger(__name__)


def main(config: Config) -> None:
    logs.setup("prepare")
    if builds_model(config):
        model(config, config.run_dir / "model")
    if generates_demonstrations(config):
        demonstrations(config, config.run_dir / "sft")


def model(config: Config, folder: Path) -> None:
    """Build the model that `model.init` describes, unless it is there."""
    if folder.is_dir():
        return
    from rlctl.models.tiny import build_tiny

    shape = config.model
    write_whole(folder, lambda unfinished: build_tiny(unfinished, shape.tiny, shape.max_context, config.run.seed))
    log.info("built the model in %s", folder)


def demonstrations(config: Config, folder: Path) -> None:
    """Optimal demonstrations of the first [[env]], as `rlctl sft-gen` makes them, unless they are there."""
    if (folder / "train.jsonl").is_file():
        return
    from rlctl.sftgen.main import Order, generate

    env, data = config.env[0], config.sft.data
    summary = generate(Order(env, data.size, 0, env.seed, episodes=data.episodes), folder, data.workers)
    log.info("wrote %s demonstrations to %s", summary["written"], folder)
