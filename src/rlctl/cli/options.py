"""Options that many commands share."""

from typing import Annotated

import typer

from rlctl.config import Loaded, load

ConfigFile = Annotated[
    list[str], typer.Option("--config", "-c", help="A preset, or a resolved.toml; may be given more than once.")
]
Set = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one value; the value is TOML."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]


def loaded(config: list[str], overrides: list[str]) -> Loaded:
    """The configuration a component runs with."""
    return load(config, overrides)
