"""From a name in `monitor.trackers` to what makes the tracker."""

import importlib
from typing import Any

from rlctl.config.root import TRACKERS
from rlctl.errors import ConfigError
from rlctl.trackers.tracker import About, Maker, Tracker

BUILT_IN = {"tensorboard": "TensorBoard", "wandb": "WandB", "swanlab": "SwanLab"}
"""Name, which is also that of the module, the package and the extra -> class."""
assert set(BUILT_IN) == set(TRACKERS)


def maker(name: str) -> Maker:
    """A built-in tracker by name, anybody's by `module:Class`; ConfigError when it cannot be imported."""
    module, _, attribute = name.partition(":")
    if name in BUILT_IN:
        module, attribute = f"rlctl.trackers.{name}", BUILT_IN[name]
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        cure = f"; pip install 'rlctl[{name}]'" if name in BUILT_IN else ""
        raise ConfigError(f"the tracker {name!r} cannot be imported: {error}{cure}") from error
    return found


def opener(name: str) -> Maker:
    """As `maker`, but nothing is imported before it is called."""

    def opened(about: About) -> Tracker:
        return maker(name)(about)

    return opened
