"""Options that many commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # pydantic takes longer to import than `rlctl --help` may take
    from rlctl.config import Loaded

ConfigFile = Annotated[
    list[str], typer.Option("--config", "-c", help="A preset, or a resolved.toml; may be given more than once.")
]
Sources = Annotated[list[str], typer.Argument(metavar="PRESET|FILE...", help="Presets by name, or TOML files.")]
Set = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one value; the value is TOML."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")]


def loaded(config: list[str], overrides: list[str]) -> "Loaded":
    """The configuration a component runs with."""
    from rlctl.config import load

    return load(config, overrides)


def existing(run_dir: Path) -> Path:
    """The run directory, or ConfigError when it is none."""
    from rlctl.errors import ConfigError

    if not (run_dir / "resolved.toml").is_file():
        what = "is not there" if not run_dir.exists() else "has no resolved.toml, so it is no run directory"
        raise ConfigError(f"{run_dir} {what}")
    return run_dir
