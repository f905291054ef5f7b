"""What every component process does: name itself, write its address when ready, stop cleanly on SIGTERM.

The file `components/NAME.json` in the run directory, `{"name", "pid", "url", "state"}`, is the readiness signal for
`rlctl up` and the source of `rlctl status`.
"""

import asyncio
import gc
import json
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rlctl.disk.files import write_text


def announce(run_dir: Path | None, name: str, url: str, state: str = "ready") -> None:
    """Publish this process's address and state (atomic rename)."""
    if run_dir is None or str(run_dir) in ("", "."):
        return
    path = run_dir / "components" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": name, "pid": os.getpid(), "url": url, "state": state})
    write_text(path, text)


async def until_signal(*mains: Coroutine[Any, Any, Any]) -> None:
    """Run `mains` until SIGTERM or SIGINT (then cancel them and wait), or until one of them ends or raises.

    What is loaded by now stays for good: a full garbage collection need not walk over it again.
    """
    gc.collect()
    gc.freeze()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    tasks = [asyncio.create_task(main) for main in mains]
    waiter = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [*tasks, waiter]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    del done
    for result in results:
        if isinstance(result, Exception):
            raise result
