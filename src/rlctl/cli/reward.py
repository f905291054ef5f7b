"""`rlctl reward`: the scoring process, and `rlctl reward score FILE`, the same offline."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.options import Set, loaded

Config = Annotated[list[str], typer.Option("--config", "-c", help="A preset, or a resolved.toml; may be repeated.")]
app = typer.Typer(invoke_without_command=True, no_args_is_help=False)


@app.callback()
def reward(context: typer.Context, config: Config = [], set_: Set = []) -> None:
    """Scores what the pool hands out; `score FILE` scores a file."""
    if context.invoked_subcommand:
        context.obj = (config, set_)
        return
    from rlctl.errors import ConfigError
    from rlctl.reward.server import main

    if not config:
        raise ConfigError("rlctl reward needs --config: a preset, or the resolved.toml of a run")
    main(loaded(config, set_).config)


@app.command()
def score(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL; `-`: stdin.")],
    config: Config = [],
    set_: Set = [],
) -> None:
    """One JSON line per sample to stdout, in order: reward, parts, step_rewards, error.

    A line of FILE is {"responses": [str], "task": {...}, "facts": {...}}, {"response": str, ...} or {"messages": [...]}
    whose assistant messages are the responses. The exit code is 1 when a sample could not be scored.
    """
    from rlctl.reward.offline import read, score_all

    earlier, changed = context.obj
    settings = loaded([*earlier, *config], [*changed, *set_]).config
    samples = read(file)
    failed = 0
    for one in score_all(settings, samples):
        failed += bool(one["error"])
        sys.stdout.write(json.dumps(one) + "\n")
    sys.stderr.write(f"{len(samples)} samples scored, {failed} of them with an error\n")
    if failed:
        raise typer.Exit(1)


def register(to: typer.Typer) -> None:
    to.add_typer(app, name="reward", rich_help_panel="Components")
