"""New weights to the engines: a folder on disk, `PUT /policy` to all at once, and their word that they serve it.

`weights/vN/` is written whole or not at all (see `folders`): `model.safetensors`, `config.json`, `PUBLISHED.json
{"version", "sha256": {"model.safetensors": hex}}`. Publishing succeeds only when every engine has answered with this
version and this checksum.
"""

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from rlctl.config.learning import Sync
from rlctl.errors import RlctlError
from rlctl.train.model.policy import Policy, export
from rlctl.train.ranks import Ranks
from rlctl.train.weights import folders

log = logging.getLogger(__name__)
WEIGHTS = "model.safetensors"
RETRY_PAUSE_S = 1.0


class PublishError(RlctlError):
    """At least one engine does not serve the new weights."""


def save_hf(policy: Policy, weights: dict[str, torch.Tensor], folder: Path, dtype: str) -> None:
    """A folder that `AutoModelForCausalLM.from_pretrained` loads."""
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = policy.lm.config.to_diff_dict()
    config |= {"architectures": [type(policy.lm).__name__], "dtype": dtype, "use_cache": True}
    config["model_type"] = policy.lm.config.model_type
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if policy.lm.can_generate() and policy.lm.generation_config is not None:
        policy.lm.generation_config.save_pretrained(folder)


def write(policy: Policy, folder: Path, version: int, dtype: str, ranks: Ranks) -> str:
    """Write the policy to `folder` as `version` (every rank calls it, rank 0 writes).

    The checksum, "" on other ranks.
    """
    weights = export(policy, dtype, keep=ranks.leads)
    if not ranks.first:
        return ""
    checksum = ""

    def fill(temporary: Path) -> None:
        nonlocal checksum
        save_hf(policy, weights, temporary, dtype)
        checksum = folders.sha256(temporary / WEIGHTS)
        text = json.dumps({"version": version, "sha256": {WEIGHTS: checksum}})
        (temporary / "PUBLISHED.json").write_text(text, encoding="utf-8")

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
