"""`rlctl merge`: whole models of adapters, for whatever does not know adapters."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from rlctl.disk.folders import write_whole
from rlctl.errors import ConfigError
from rlctl.models.adapters import merged, read
from rlctl.wire.published import (
    ADAPTER,
    ADAPTER_CONFIG,
    BASE,
    WEIGHTS,
    Base,
    Checksums,
    Unusable,
    check,
    model_files,
    read_base,
)

TOKENIZER = "tokenizer_config.json"
BESIDE = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.model",
)
"""Files of a tokenizer, by the names that transformers gives them."""


def whole_model(checkpoint: Path, base: str = "") -> Path:
    """The Hugging Face folder of a checkpoint; merged now, and kept there, where it holds only adapters."""
    folder = checkpoint / "hf"
    if not folder.is_dir() and (checkpoint / "adapter").is_dir():
        merge_into(checkpoint / "adapter", folder, base)
    return folder


def merge_into(adapters: Path, out: Path, base: str = "") -> None:
    """Write the merged model and its tokenizer to `out`, which must not be there; ConfigError when it cannot be.

    `base`: the folder of the base, where it no longer lies where base.json says, or where there is none.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already")
    try:
        stands_on = _base(adapters, base)
        tokenizer = _tokenizer(adapters, Path(stands_on.path))
        weights = {name: weight.contiguous() for name, weight in merged(read(adapters), stands_on)}
    except Unusable as error:
        raise ConfigError(str(error)) from error

    def fill(folder: Path) -> None:
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        _copy_settings(Path(stands_on.path), folder, stands_on.dtype)
        for pattern in BESIDE:
            for file in tokenizer.glob(pattern):
                shutil.copy(file, folder)

    write_whole(out, fill)


def _base(adapters: Path, given: str) -> Base:
    """What the adapters stand on, with its weights verified; Unusable when it is not to be had."""
    if (adapters / BASE).is_file():
        told = read_base(adapters)
        base = Base(given or told.path, told.sha256, told.dtype)
        try:
            check(Path(base.path), base.sha256, Checksums())
        except Unusable as error:
            raise Unusable(f"{error}; name the folder of the adapters' base with --base") from error
        return base
    if not (adapters / ADAPTER_CONFIG).is_file():
        raise Unusable(f"{adapters} holds no adapters ({ADAPTER}, {ADAPTER_CONFIG})")
    if not given:
        raise Unusable(f"{adapters} does not say what it stands on ({BASE}); name the folder with --base")
    if not model_files(Path(given)):
        raise Unusable(f"--base {given}: no model in safetensors files there")
    return Base(given, {}, _config(Path(given)).get("dtype") or "float32")


def _tokenizer(adapters: Path, base: Path) -> Path:
    """The folder that the tokenizer lies in."""
    for folder in (adapters, base):
        if (folder / TOKENIZER).is_file():
            return folder
    raise Unusable(f"no tokenizer in {adapters} or {base}; merge the adapters of a checkpoint, which has it")


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config | {"dtype": config.get("dtype") or config.get("torch_dtype")}


def _copy_settings(base: Path, out: Path, dtype: str) -> None:
    config = _config(base) | {"dtype": dtype}
    config.pop("torch_dtype", None)
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if (base / "generation_config.json").is_file():
        shutil.copy(base / "generation_config.json", out)
