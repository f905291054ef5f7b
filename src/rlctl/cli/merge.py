"""`rlctl merge`: a whole model of the adapters that LoRA training saved."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.options import Json


def merge(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="RUN_DIR, checkpoint, or folder of adapters.")],
    out: Annotated[Path | None, typer.Argument(help="New folder; of a checkpoint its hf/ by default.")] = None,
    base: Annotated[str, typer.Option(help="Folder of the model below, if not where the adapters say.")] = "",
    as_json: Json = False,
) -> None:
    """Merge adapters into their base: a Hugging Face folder for vLLM, transformers and `rlctl eval --model`.

    A RUN_DIR stands for its last checkpoint.
    """
    from rlctl.errors import ConfigError
    from rlctl.models.merging import merge_into, whole_model
    from rlctl.models.paths import holds_adapters
    from rlctl.up.history.summary import checkpoint

    folder = source
    if (source / "resolved.toml").is_file():
        saved = checkpoint(source)
        if not saved:
            raise ConfigError(f"{source} has no checkpoint")
        folder = Path(saved)
    if not holds_adapters(folder):
        raise ConfigError(f"{folder} holds no adapters")
    inner = folder / "adapter"
    if out is not None:
        merge_into(inner if inner.is_dir() else folder, out, base)
    elif inner.is_dir():
        out = whole_model(folder, base)
    else:
        raise ConfigError(f"where to? `rlctl merge {source} OUT`")
    if as_json:
        sys.stdout.write(json.dumps({"adapters": str(folder), "model": str(out)}) + "\n")
    else:
        sys.stdout.write(f"{out}\n")


def register(app: typer.Typer) -> None:
    app.command()(merge)
