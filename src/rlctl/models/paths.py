"""Whether `model.path` can be there at all, found out without torch (for `rlctl up`, before anything starts)."""

import re
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_OFFLINE

from rlctl.errors import ConfigError
from rlctl.wire.published import ADAPTER_CONFIG

_HUB_ID = re.compile(r"^\w[\w.-]*(/\w[\w.-]*)?$")


def holds_adapters(folder: Path) -> bool:
    """Whether it is a checkpoint with adapters, or an adapter folder of peft's."""
    return (folder / "adapter" / ADAPTER_CONFIG).is_file() or (folder / ADAPTER_CONFIG).is_file()


def check_model_path(path: str, revision: str = "") -> None:
    """Accept a folder that holds a config.json, or the form of a Hugging Face id; ConfigError with the cure otherwise.

    An id is looked up only in the local cache, and only when HF_HUB_OFFLINE says that there is nowhere else to look;
    whether the hub knows it turns out when it is loaded.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            cure = "; it holds adapters, of which `rlctl merge` makes a model" if holds_adapters(folder) else ""
            raise ConfigError(f"model.path = {path!r}: there is no config.json in that folder{cure}")
        return
    if folder.exists():
        raise ConfigError(f"model.path = {path!r}: not a folder; give the folder that holds config.json")
    if not _HUB_ID.match(path) or ("/" in path and folder.parent.is_dir()):
        raise ConfigError(f"model.path = {path!r}: no such folder")
    if HF_HUB_OFFLINE and not isinstance(try_to_load_from_cache(path, "config.json", revision=revision or None), str):
        raise ConfigError(
            f"model.path = {path!r}: no such folder, and as a Hugging Face id it is not in the local cache "
            "(HF_HUB_OFFLINE is set)"
        )
