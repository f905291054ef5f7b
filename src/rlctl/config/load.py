"""Loading: built-in < `extends` chain < files left to right < RLCTL__SECTION__KEY < `-s section.key=value`.

Every value remembers the place it came from, so an error can name it and `rlctl config explain` can show it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from pydantic import ValidationError

from rlctl.config import locate, presets
from rlctl.config.base import masked
from rlctl.config.complain import problems
from rlctl.config.root import Config
from rlctl.errors import ConfigError

ENV_PREFIX = "RLCTL__"
Key = tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """A validated configuration and where each value came from."""

    config: Config
    places: dict[Key, str] = field(default_factory=dict)
    """Key path -> "FILE:LINE", "RLCTL__A__B" or "-s a.b=..."; keys that are not here have their default."""

    def toml(self) -> str:
        """The resolved configuration, every key written out; the same bytes for the same configuration."""
        return tomli_w.dumps(self.config.model_dump(mode="json", exclude_none=True))


def load(
    sources: Sequence[str | Path], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Merge presets and files (names or paths) with environment variables and `-s` overrides; raise ConfigError."""
    tree: dict[str, Any] = {}
    places: dict[Key, str] = {}
    for source in sources:
        _merge_file(presets.find(source), tree, places, chain=())
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.startswith(ENV_PREFIX):
            _assign(tree, places, [part.lower() for part in name[len(ENV_PREFIX) :].split("__")], text, name)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-s {override}: expected section.key=value, e.g. -s train.optim.lr=1e-5")
        parts = key.strip().replace("[", ".").replace("]", "").split(".")
        _assign(tree, places, parts, text.strip(), f"-s {masked(override)}")
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(problems(error, tree, places)) from None
    return Loaded(config, places)


def _merge_file(path: Path, tree: dict[str, Any], places: dict[Key, str], chain: tuple[Path, ...]) -> None:
    if path in chain:
        raise ConfigError(f"{path}: `extends` goes round in a circle: {' -> '.join(map(str, (*chain, path)))}")
    text = presets.read(path)
    try:
        content = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: not valid TOML: {error.msg}") from None
    bases = content.pop("extends", [])
    for base in [bases] if isinstance(bases, str) else bases:
        _merge_file(presets.find(base, beside=path), tree, places, (*chain, path))
    numbers = locate.lines(text)
    _merge(tree, content, (), places, {key: f"{path}:{line}" for key, line in numbers.items()})


def _merge(
    into: dict[str, Any], new: dict[str, Any], at: Key, places: dict[Key, str], found: Mapping[Key, str]
) -> None:
    """Tables are merged, everything else (lists too) is replaced."""
    for name, value in new.items():
        key = (*at, name)
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value, key, places, found)
            continue
        into[name] = value
        for stale in [k for k in places if k[: len(key)] == key]:
            del places[stale]
        places.update({k: place for k, place in found.items() if k[: len(key)] == key})


def _assign(tree: dict[str, Any], places: dict[Key, str], parts: list[str], text: str, place: str) -> None:
    """Set one value; numbers in the path index lists. A text that is no TOML value is taken as a string."""
    try:
        value = tomli.loads(f"x = {text}")["x"]
    except tomli.TOMLDecodeError:
        value = text
    node: Any = tree
    for i, part in enumerate(parts[:-1]):
        if isinstance(node, list):
            node = node[_index(node, part, place)]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise ConfigError(f"{place}: {'.'.join(parts[: i + 1])} is a value, not a table")
    if isinstance(node, list):
        node[_index(node, parts[-1], place)] = value
    else:
        node[parts[-1]] = value
    key = tuple(parts)
    for stale in [k for k in places if k[: len(key)] == key]:
        del places[stale]
    places[key] = place


def _index(items: list[Any], part: str, place: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"{place}: expected an item number from 0 to {len(items) - 1}, not {part!r}")
    return int(part)
