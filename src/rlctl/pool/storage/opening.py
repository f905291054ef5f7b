"""Which journal a run has: on disk in its run directory, or in the Redis that `pool.url` names."""

import asyncio
import re
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.config.base import MASK
from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.pool.storage.journal import Durable, Journal
from rlctl.telemetry.process import until_signal

if TYPE_CHECKING:
    from rlctl.pool.storage.redis_journal import RedisJournal

NAME = "redis-run"
"""File in RUN/pool: what this run is called in Redis."""


async def open_journal(config: Config) -> Durable | None:
    """The journal, owned by this process; None if a signal came while it still belonged to another pool."""
    directory = config.run_dir / "pool"
    if not config.pool.in_redis:
        if (directory / NAME).exists():
            raise ConfigError(
                f"{directory}: the samples of this run are in Redis, as {run_name(config)}: set pool.url to it"
            )
        return Journal(directory, config.pool.fsync)
    if any(file.stat().st_size for file in directory.glob("journal-*.log")):
        raise ConfigError(f"{directory}: the samples of this run are on this disk; pool.url = Redis is for a new run")
    journal = _redis(config)
    await until_signal(journal.own(config.pool_url))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):  # until the pool serves, signals end it at once
        loop.remove_signal_handler(signum)
    return journal if journal.owned else None


def _redis(config: Config) -> "RedisJournal":
    if MASK in config.pool.url:
        raise ConfigError("pool.url: the password is not kept in resolved.toml: give the address in RLCTL__POOL__URL")
    try:
        from rlctl.pool.storage.redis_journal import RedisJournal
    except ModuleNotFoundError as error:
        raise ConfigError(f"pool.url = Redis needs the package {error.name}: pip install 'rlctl[redis]'") from None
    return RedisJournal(config.pool.url, run_name(config), config.pool.redis_wait_s, config.pool.fsync)


def run_name(config: Config) -> str:
    """A name of its own, chosen once and kept in the run directory: a new run never finds an old one's samples."""
    file = config.run_dir / "pool" / NAME
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{config.run.name}-{config.run_dir.name}")
        temporary = file.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(f"{words}-{uuid.uuid4().hex[:8]}\n", encoding="utf-8")
        _first(temporary, file)
    return file.read_text(encoding="utf-8").strip()


def _first(temporary: Path, file: Path) -> None:
    """Give `temporary` its name, unless another process was faster."""
    try:
        file.hardlink_to(temporary)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
