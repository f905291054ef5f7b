"""Token ids to text with the tokenizer of a run, special tokens kept: an exported text is what the model read."""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from rlctl.config import load
from rlctl.errors import RlctlError
from rlctl.wire.arrays import unpack_ids


def decoder(run_dir: Path) -> Callable[[bytes], str]:
    """Packed int32 ids -> text. The model's folder is that of resolved.toml, or the one built in the run directory."""
    config = load([str(run_dir / "resolved.toml")], environ={}).config
    places = [Path(config.model.path or run_dir / "model"), run_dir / "model"]
    file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
    if file is None:
        raise RlctlError(f"no tokenizer.json in {' or '.join(map(str, dict.fromkeys(places)))}: text cannot be made")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(unpack_ids(ids).tolist(), skip_special_tokens=False))
