"""`rlctl track RUN_DIR`: curves and pictures to TensorBoard, Weights & Biases, ... from the run's files."""

import json
from typing import Annotated

import typer

from rlctl.cli.options import Json, RunDir, existing, loaded


def track(
    run_dir: RunDir,
    to: Annotated[
        list[str], typer.Option(help="tensorboard, wandb, swanlab or module:Class; empty: monitor.trackers.")
    ] = [],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until SIGTERM, as `rlctl up` does.")] = False,
    as_json: Json = False,
) -> None:
    """Send what the trackers have not had yet, of a live run or a dead one."""
    from rlctl.trackers.runner import main

    config = loaded([str(existing(run_dir) / "resolved.toml")], []).config
    for name, noted in main(run_dir.absolute(), config, to, follow).items():
        row = {key: getattr(noted, key) for key in ("rows", "pictures", "skipped", "failures")}
        if as_json:
            typer.echo(json.dumps({"tracker": name, **row}))
        else:
            typer.echo(f"{name}: " + ", ".join(f"{value} {key}" for key, value in row.items()), err=True)


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Runs")(track)
