"""New weights to the engines: a folder on disk, `PUT /policy` to all at once, and their word that they serve it.

`weights/vN/` is written whole or not at all (see `folders`; what is in it: `wire.published`). Publishing succeeds only
when every engine has answered with this version and the checksum of the file that holds the weights.
"""

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlctl.config.learning import Sync
from rlctl.disk import folders
from rlctl.errors import RlctlError
from rlctl.train.weights.outgoing import Outgoing
from rlctl.wire.published import announce

log = logging.getLogger(__name__)
RETRY_PAUSE_S = 1.0


class PublishError(RlctlError):
    """At least one engine does not serve the new weights."""


def write(outgoing: Outgoing, folder: Path, version: int, whole: bool = False) -> str:
    """Write the policy to `folder` as `version` (every rank calls it, rank 0 writes): its adapters, or all of it.

    `whole`: all of it in any case. Returns the checksum, "" on other ranks.
    """
    alone = outgoing.base is not None and not whole
    weights = outgoing.adapters if alone else outgoing.whole
    if not outgoing.ranks.first:
        return ""
    checksum = ""

    def fill(temporary: Path) -> None:
        nonlocal checksum
        save = outgoing.save_adapters if alone else outgoing.save_whole
        checksum = announce(temporary, version, save(weights, temporary))

    folders.write_whole(folder, fill)
    return checksum


def deliver(urls: Sequence[str], version: int, folder: Path, checksum: str, sync: Sync) -> None:
    """Tell every engine, all at once, and wait for all; PublishError names each engine that does not serve it."""
    if not urls:
        return
    with ThreadPoolExecutor(len(urls), "publish") as pool:
        problems = list(pool.map(lambda url: _tell(url, version, folder, checksum, sync), urls))
    if found := [f"{url}: {problem}" for url, problem in zip(urls, problems, strict=True) if problem]:
        raise PublishError(f"version {version} is not served by every engine:\n  " + "\n  ".join(found))


def _tell(url: str, version: int, folder: Path, checksum: str, sync: Sync) -> str:
    """ "" once the engine at `url` serves this version, else what is wrong."""
    problem = ""
    for attempt in range(sync.retries + 1):
        if attempt:
            log.warning("engine %s: %s; trying again", url, problem)
            time.sleep(RETRY_PAUSE_S)
        try:
            reply = _put(
                f"{url.rstrip('/')}/policy", {"version": version, "path": str(folder.absolute())}, sync.timeout_s
            )
        except urllib.error.HTTPError as error:
            problem = f"answered {error.code}: {error.read().decode('utf-8', 'replace').strip()[:500]}"
            if error.code < 500:
                return problem
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            told = (reply.get("version"), reply.get("checksum"))
            return (
                "" if told == (version, checksum) else f"serves version {told[0]}, checksum {told[1]}, not {checksum}"
            )
    return problem


def _put(url: str, body: dict[str, object], timeout_s: float) -> dict[str, object]:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        answer = json.loads(reply.read())
    if not isinstance(answer, dict):
        raise ValueError(f"answered {answer!r}")
    return answer
