"""`rlctl sft-gen ENV --out DIR`: optimal demonstrations by search; `--from-pool RUN`: the best of a run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.options import Json, Set, existing
from rlctl.errors import ConfigError

if TYPE_CHECKING:
    from rlctl.config.serving import Env
    from rlctl.sftgen.main import Order

SEED = 100_000


def sft_gen(
    env: Annotated[str, typer.Argument(help="sokoban, frozenlake, or module:Class.", show_default=False)] = "",
    *,
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl, test.jsonl and summary.json.")],
    train_size: Annotated[int | None, typer.Option(help="Training instances (1000).")] = None,
    test_size: Annotated[int | None, typer.Option(help="Test instances (100); of a run: prompts held out (0).")] = None,
    seed: Annotated[int | None, typer.Option(help=f"First instance seed ({SEED}; of own levels 0).")] = None,
    workers: Annotated[int, typer.Option(help="Processes; the files do not depend on it.")] = 1,
    max_depth: Annotated[int, typer.Option(help="Longest plan, in actions; deeper instances are skipped.")] = 100,
    episodes: Annotated[int, typer.Option(help="Rows per instance (they differ where several plans are optimal).")] = 1,
    thoughts: Annotated[bool, typer.Option("--thoughts", help="Tell the plan as a thought (env.think).")] = False,
    form: Annotated[str, typer.Option("--format", help="jsonl, parquet, ragen-jsonl, ragen-parquet.")] = "jsonl",
    curriculum: Annotated[str, typer.Option(help="Short plans first: none, sorted, bucketed.")] = "none",
    levels: Annotated[Path | None, typer.Option(help="Own levels (XSB, SOK, Boxoban): a file or folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away what --out holds.")] = False,
    from_pool: Annotated[Path | None, typer.Option(metavar="RUN", help="Keep the best trajectories of a run.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="With --from-pool: least reward.")] = None,
    best: Annotated[int, typer.Option(help="With --from-pool: most trajectories of one group (0: all).")] = 0,
    config: Annotated[list[str], typer.Option("--config", "-c", help="A preset; its env of this name is used.")] = [],
    set_: Set = [],
    json_: Json = False,
) -> None:
    """Demonstrations of the optimal player as chats; prompts are those of RL, boards never those of RL.

    Goes on where it was killed. With --from-pool: trajectories of a run, token by token.
    """
    if from_pool is not None:
        given = {
            "--train-size": train_size, "--seed": seed, "--levels": levels, "--thoughts": thoughts, "--config": config,
            "--set": set_, "--overwrite": overwrite, "--curriculum": curriculum != "none", "--episodes": episodes != 1,
        }  # fmt: skip
        if foreign := [name for name, value in given.items() if value not in (None, False, [])]:
            raise ConfigError(f"{', '.join(foreign)} cannot be used with --from-pool")
        _harvest(from_pool, out, env, min_reward, best, test_size or 0, form, json_)
        return
    if min_reward is not None or best:
        raise ConfigError("--min-reward and --best need --from-pool RUN")
    if not env:
        raise ConfigError("which environment? rlctl sft-gen ENV --out DIR, or --from-pool RUN")
    if levels is not None:
        set_ = [*set_, f"env.levels={json.dumps(str(levels.resolve()))}"]
    chosen = _environment(env, config, set_)
    from rlctl.sftgen.main import Order

    first = seed if seed is not None else 0 if chosen.options.get("levels") else SEED
    sizes = (1000 if train_size is None else train_size, 100 if test_size is None else test_size)
    order = Order(chosen, *sizes, first, max_depth, thoughts, episodes, form, curriculum)
    summary = _generate(order, out, workers, overwrite)
    if json_:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    _tell(summary, out)


def _generate(order: "Order", out: Path, workers: int, overwrite: bool) -> dict[str, Any]:
    """With a progress bar on a terminal."""
    from rlctl.sftgen.main import generate

    if not sys.stderr.isatty():
        return generate(order, out, workers, overwrite)
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    # Without auto_refresh the bar has no thread of its own, so that workers can be forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(f"{order.env.name} instances", total=order.train_size + order.test_size)
        return generate(order, out, workers, overwrite, lambda done, _: bar.update(task, completed=done, refresh=True))


def _tell(summary: dict[str, Any], out: Path) -> None:
    counts = ("duplicates", "unsolvable", "too_deep", "too_large", "too_short", "no_instance")
    skipped = ", ".join(f"{summary[name]} {name.replace('_', ' ')}" for name in counts if summary[name])
    sys.stdout.write(
        f"{summary['train']} training and {summary['test']} test instances in {out} "
        f"({summary['seeds']} seeds{', ' + skipped if skipped else ''}; {summary['seconds']:.1f} s)\n"
    )
    for bad in summary["bad"][:20]:
        sys.stderr.write(f"bad level {bad}\n")
    if summary["bad_levels"] > 20:
        sys.stderr.write(f"{summary['bad_levels'] - 20} more bad levels: see {out / 'summary.json'}\n")


def _harvest(
    run: Path, out: Path, env: str, min_reward: float | None, best: int, test_size: int, form: str, json_: bool
) -> None:
    from rlctl.sftgen.harvest import Wish, harvest

    found = harvest(existing(run), out, Wish(min_reward, best, test_size, env, form))
    if json_:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    sys.stdout.write("\n".join(f"{name:20} {value}" for name, value in found.items()) + "\n")


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
