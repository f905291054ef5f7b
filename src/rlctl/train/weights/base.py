"""The base of adapters: the model folder whose weights are, bit for bit, the frozen ones of the policy.

Adapters alone are worth something only beside the very weights that they were trained with, so the trainer compares: as
a rule these lie in the folder that it started from. Where they do not (4-bit codes stand for other weights; files that
are not safetensors, or name their tensors otherwise), it writes them once, to `RUN_DIR/weights/base`.
"""

import json
import logging
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from rlctl.config import Config
from rlctl.disk import folders
from rlctl.errors import RlctlError
from rlctl.models.adapters import stored
from rlctl.train.model.adapters import lora
from rlctl.train.model.policy import Policy
from rlctl.train.ranks import Ranks
from rlctl.train.weights.export import export
from rlctl.train.weights.outgoing import Weights, save_hf
from rlctl.wire.published import ADAPTER_CONFIG, Base, Unusable, model_files, read_base, sha256

log = logging.getLogger(__name__)


def base_of(policy: Policy, config: Config, start: str, ranks: Ranks) -> Base | None:
    """The base of the policy's adapters, the same on every rank (all call it); None when it has none.

    `start`: the folder or Hugging Face id that the policy was loaded from.
    """
    if not config.train.lora.rank:
        return None
    dtype = config.model.dtype
    frozen = export(policy, dtype, keep=ranks.leads, merged=False)
    if not ranks.first:
        return _shared(None, ranks)
    own = config.run_dir / "weights" / "base"
    folder = next((one for one in (_local(start, config.model.revision), own) if one and holds(one, frozen)), None)
    if folder is None:
        log.info("writing the base of the adapters to %s", own)
        folders.write_whole(own, lambda temporary: save_hf(policy, frozen, temporary, dtype))
        folder = own
    folder = folder.absolute()
    return _shared(Base(str(folder), {file.name: sha256(file) for file in model_files(folder)}, dtype), ranks)


def _shared(base: Base | None, ranks: Ranks) -> Base:
    found: Base = ranks.broadcast(base)
    return found


def _local(start: str, revision: str) -> Path | None:
    """The folder of `start` on this machine, which has been loaded from there."""
    if Path(start).is_dir():
        return Path(start)
    try:
        return Path(snapshot_download(start, revision=revision or None, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def holds(folder: Path, weights: Weights) -> bool:
    """Whether the files of `folder` hold these weights, all of them and nothing else."""
    left = dict(weights)
    for name, value in stored(folder):
        mine = left.pop(name, None)
        if mine is None or not torch.equal(mine, value.float().to(mine.dtype) if value.is_floating_point() else value):
            return False
    return not left


def check(folder: Path, policy: Policy, base: Base) -> None:
    """RlctlError unless the adapters in the checkpoint's `folder` belong to this base and these settings."""
    cure = "go on with the configuration it was written by, or begin a new run"
    try:
        before = read_base(folder)
        told = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (Unusable, OSError, ValueError) as error:
        raise RlctlError(f"{folder} holds no adapters to go on with ({error}); {cure}") from error
    if before.sha256 != base.sha256:
        raise RlctlError(
            f"{folder}: its adapters were trained on {before.path}, whose weights are not those of this run's base, "
            f"{base.path} (model.path, or the warm start); {cure}"
        )
    now = lora.settings(policy.lm, base.path)
    for key, name in (("r", "rank"), ("lora_alpha", "alpha"), ("target_modules", "target_modules")):
        if told.get(key) != now[key]:
            raise RlctlError(f"{folder}: train.lora.{name} was {told.get(key)}, now it is {now[key]}; {cure}")
