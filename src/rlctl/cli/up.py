"""`rlctl up`: everything on this machine, from one preset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.options import Json, Set, Sources, loaded

if TYPE_CHECKING:
    from rlctl.up.run import Setup


def up(
    sources: Sources = [],
    set_: Set = [],
    plan: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Show what would start (argv, ports, devices); start nothing.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a run: a RUN_DIR among the arguments, else the preset's newest one."),
    ] = False,
    only: Annotated[str, typer.Option(help="Start these processes only, e.g. pool,gateway.")] = "",
    as_json: Json = False,
) -> None:
    """Run a preset: start every component, train, report.

    Exit codes: 0 done, 2 configuration, 3 a component died, 4 no progress (watchdog), 130 interrupted.
    """
    setup = _setup(sources, set_, resume, [word.strip() for word in only.split(",") if word.strip()])
    if plan:
        _show(setup, as_json)
        return
    from rlctl.up.run import start

    raise typer.Exit(start(setup, as_json))


def plan(sources: Sources = [], set_: Set = [], as_json: Json = False) -> None:
    """Show what `rlctl up` would start (argv, ports, devices, environment); start nothing."""
    _show(_setup(sources, set_, False, []), as_json)


def _setup(sources: list[str], set_: list[str], resume: bool, only: list[str]) -> "Setup":
    from rlctl.errors import ConfigError
    from rlctl.up.run import latest, set_up

    folders = [Path(source) for source in sources if (Path(source) / "resolved.toml").is_file()]
    files = [source for source in sources if Path(source) not in folders]
    if folders and not resume:
        raise ConfigError(f"{folders[0]} is a run directory; --resume goes on with it")
    if len(folders) > 1:
        raise ConfigError(f"--resume takes one run directory, not {len(folders)}")
    if not sources:
        raise ConfigError("which preset? e.g. `rlctl up frozenlake-cpu`; `rlctl presets ls` shows them all")
    from_run = [str(folder / "resolved.toml") for folder in folders] if not files else []
    configuration = loaded([*from_run, *files], set_)
    run_dir = None if not resume else folders[0] if folders else latest(configuration)
    return set_up(configuration, run_dir, resume, only)


def _show(setup: "Setup", as_json: bool) -> None:
    from rlctl.up.planning import checks
    from rlctl.up.run import planned

    checks.check(setup.loaded, setup.specs, hub=lambda model, revision: None, starting=False)
    if as_json:
        import json

        typer.echo(json.dumps(planned(setup)))
        return
    from rich.console import Console

    from rlctl.up.planned import show

    show(Console(), setup)


def prepare(
    config: Annotated[list[str], typer.Option("--config", "-c", help="A resolved.toml.")], set_: Set = []
) -> None:
    """Build what a run needs first: the tiny model, demonstrations for the warm start."""
    from rlctl.up.prepare import main

    main(loaded(config, set_).config)


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(plan)
    app.command(rich_help_panel="Components")(prepare)
