"""`rlctl track RUN_DIR`: sends a run to trackers, once or for as long as it goes on.

rows of metrics, pictures (RUN on disk) --> one Mirror and thread per tracker --> TensorBoard, W&B, ...

Nothing in here can end a run: `rlctl up` goes on without this process, and one tracker without the others.
"""

import fcntl
import logging
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import tomli

from rlctl.config import Config
from rlctl.errors import ConfigError, RlctlError
from rlctl.telemetry import logs
from rlctl.telemetry.process import announce
from rlctl.trackers.choose import maker, opener
from rlctl.trackers.mirror import FOLDER, Mirror, Noted

log = logging.getLogger(__name__)


def main(run_dir: Path, config: Config, names: Sequence[str], follow: bool) -> dict[str, Noted]:
    """Send to the trackers `names` (empty: monitor.trackers); what each has got in all.

    RlctlError when not `follow` and something could not be sent.
    """
    logs.setup("track")
    names = list(names) or config.monitor.trackers
    if not names:
        raise ConfigError(f"{run_dir} names no tracker: give --to tensorboard (or wandb, ...), or set monitor.trackers")
    resolved = tomli.loads((run_dir / "resolved.toml").read_text(encoding="utf-8"))
    with _alone(run_dir):
        if follow:
            announce(run_dir, "track", "")
        else:
            for name in names:
                maker(name)  # an error now, instead of one to be tried again
        mirrors = {name: Mirror(run_dir, name, opener(name), config.monitor.project, resolved) for name in names}
        _run(list(mirrors.values()), follow)
    noted = {name: mirror.noted for name, mirror in mirrors.items()}
    left = [f"{name}: {one.waiting} not sent, {one.error}" for name, one in noted.items() if one.waiting]
    if left and not follow:
        raise RlctlError("\n".join(left))
    return noted


def _run(mirrors: list[Mirror], follow: bool) -> None:
    stop = Event()
    for signum in (signal.SIGTERM, signal.SIGINT) if follow else ():
        signal.signal(signum, lambda *_: stop.set())
    if not follow:
        stop.set()
    with ThreadPoolExecutor(len(mirrors)) as threads:
        for done in [threads.submit(mirror.run, stop) for mirror in mirrors]:
            done.result()


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Two at once would send everything twice."""
    path = run_dir / FOLDER / "lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{run_dir} is being sent to its trackers by another process already") from None
        yield
