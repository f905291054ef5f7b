"""Token ids to text, with the tokenizer of the model (`tokenizers` only: no torch in this process)."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from tokenizers import Tokenizer

from rlctl.errors import RlctlError
from rlctl.wire.arrays import unpack_ids

Decoder = Callable[[bytes], str]
"""Packed int32 ids -> text without special tokens."""


def load_decoder(model: str, revision: str = "") -> Decoder:
    """From a folder with tokenizer.json, or a model id on the hub."""
    file = Path(model) / "tokenizer.json"
    if not file.exists():
        file = _from_hub(model, revision)
    tokenizer = Tokenizer.from_file(str(file))

    def decode(ids: bytes) -> str:
        return tokenizer.decode(unpack_ids(ids).tolist(), skip_special_tokens=True)

    return decode


def _from_hub(model: str, revision: str) -> Path:
    if Path(model).exists():
        raise RlctlError(f"{model} has no tokenizer.json, which scoring text needs")
    try:
        return Path(hf_hub_download(model, "tokenizer.json", revision=revision or None))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise RlctlError(f"no tokenizer.json for model {model!r}, which scoring text needs: {error}") from error
