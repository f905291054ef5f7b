"""`rlctl sft-gen ENV --out DIR`: optimal demonstrations by search."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.options import Json, Set
from rlctl.errors import ConfigError

if TYPE_CHECKING:
    from rlctl.config.serving import Env


def sft_gen(
    env: Annotated[str, typer.Argument(help="sokoban, frozenlake, or module:Class.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl, test.jsonl and summary.json.")],
    train_size: Annotated[int, typer.Option(help="Training instances.")] = 1000,
    test_size: Annotated[int, typer.Option(help="Test instances.")] = 100,
    seed: Annotated[int, typer.Option(help="First instance seed.")] = 100_000,
    workers: Annotated[int, typer.Option(help="Processes; the files do not depend on it.")] = 1,
    max_depth: Annotated[int, typer.Option(help="Longest plan, in actions; deeper instances are skipped.")] = 100,
    episodes: Annotated[int, typer.Option(help="Rows per instance (they differ where several plans are optimal).")] = 1,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Tell the plan as a thought (env.think).")] = False,
    config: Annotated[list[str], typer.Option("--config", "-c", help="A preset; its env of this name is used.")] = [],
    set_: Set = [],
    json_: Json = False,
) -> None:
    """Demonstrations of the optimal player as chat JSONL; prompts are those of RL, boards never those of RL."""
    chosen = _environment(env, config, set_)
    from rlctl.sftgen.main import generate

    sizes = (train_size, test_size, seed, workers, max_depth, thoughts, episodes)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            *Progress.get_default_columns()[:-1],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"{env} instances", total=train_size + test_size)
            summary = generate(chosen, out, *sizes, progress=lambda done, _: bar.update(task, completed=done))
    else:
        summary = generate(chosen, out, *sizes)
    if json_:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    counts = ("duplicates", "unsolvable", "too_deep", "too_large", "no_instance")
    skipped = ", ".join(f"{summary[name]} {name.replace('_', ' ')}" for name in counts if summary[name])
    sys.stdout.write(
        f"{summary['train']} training and {summary['test']} test instances in {out} "
        f"({summary['seeds']} seeds{', ' + skipped if skipped else ''}; {summary['seconds']:.1f} s)\n"
    )


def _environment(name: str, config: list[str], overrides: list[str]) -> "Env":
    """The [[env]] called (or tagged) `name`, of the presets given or on its own; `-s env.key=value` changes it."""
    from rlctl.config import load
    from rlctl.config.suggest import nearest
    from rlctl.config.worlds import WORLDS

    if ":" not in name and name not in WORLDS and not config:
        hint = nearest(name, WORLDS)
        more = f"did you mean {hint!r}?" if hint else f"there are: {', '.join(WORLDS)}, module:Class"
        raise ConfigError(f"{name!r} is no environment; {more}")
    if not config:
        alone = ['model.init="tiny"', f"env=[{{name={json.dumps(name)}}}]"]
        changed = [_indexed(override, 0) for override in overrides]
        return load([], [*alone, *changed], environ={}).config.env[0]
    tables = load(config).config.env
    found = [index for index, env in enumerate(tables) if name in (env.tag, env.name)]
    if not found:
        there = ", ".join(env.tag or env.name for env in tables) or "none"
        raise ConfigError(f"{', '.join(config)}: no [[env]] is called {name!r} (there are: {there})")
    return load(config, [_indexed(override, found[0]) for override in overrides]).config.env[found[0]]


def _indexed(override: str, index: int) -> str:
    """env.key=value -> env.INDEX.key=value."""
    section, _, rest = override.partition(".")
    if section != "env" or not rest or rest[0].isdigit():
        raise ConfigError(f"-s {override}: sft-gen takes keys of the environment only, e.g. -s env.slippery=true")
    return f"env.{index}.{rest}"


def register(app: typer.Typer) -> None:
    app.command("sft-gen", rich_help_panel="Data")(sft_gen)
