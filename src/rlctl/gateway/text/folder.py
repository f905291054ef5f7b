"""Files of a Hugging Face model folder that the gateway needs: tokenizer, chat template, special tokens. No torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.errors import ConfigError


@dataclass(frozen=True)
class ModelFiles:
    """What was read from the folder (or the hub)."""

    tokenizer_json: str
    """Text of tokenizer.json."""
    chat_template: str
    """Jinja source; empty when the model has none."""
    special_tokens: dict[str, str]
    """bos_token, eos_token, ... by name: what chat templates may refer to."""
    images: bool = False
    """The model takes images: its configuration has a vision tower."""


def read(source: str, revision: str = "") -> ModelFiles:
    """Read `source`, a folder or a Hugging Face id; ConfigError when there is no tokenizer.json."""
    tokenizer = _text(source, "tokenizer.json", revision)
    if tokenizer is None:
        raise ConfigError(f"{source}: no tokenizer.json there; the gateway needs the fast tokenizer of the model")
    config = _json(source, "tokenizer_config.json", revision)
    template = _text(source, "chat_template.jinja", revision) or _named(config.get("chat_template"))
    if not template:
        template = _named(_json(source, "chat_template.json", revision).get("chat_template"))
    special = _special(config | _json(source, "special_tokens_map.json", revision))
    return ModelFiles(tokenizer, template, special, "vision_config" in _json(source, "config.json", revision))


def _named(template: Any) -> str:
    """`chat_template` is a string, or a list of {name, template} of which `default` counts."""
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default", "")
    return template or ""


def _special(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _json(source: str, name: str, revision: str) -> dict[str, Any]:
    text = _text(source, name, revision)
    try:
        return json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}/{name} is not JSON: {error}") from None


def _text(source: str, name: str, revision: str) -> str | None:
    if Path(source).is_dir():
        path = Path(source) / name
        return path.read_text(encoding="utf-8") if path.is_file() else None
    return _from_hub(source, name, revision)


def _from_hub(source: str, name: str, revision: str) -> str | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, name, revision=revision or None)).read_text(encoding="utf-8")
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        raise ConfigError(f"{source}: no such folder, and no model of that name could be loaded: {error}") from None
