"""`rlctl eval`: a checkpoint, a model id or any OpenAI endpoint on the environments of a preset."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.options import Json, Set, Sources, loaded

if TYPE_CHECKING:
    from rlctl.config import Config
    from rlctl.rollout.measure import Order


def evaluate(
    sources: Sources = [],
    set_: Set = [],
    model: Annotated[str, typer.Option(help="Folder or Hugging Face id; with --base-url the model's name there.")] = "",
    base_url: Annotated[str, typer.Option(help="An OpenAI endpoint, https://HOST/v1; empty: our own engine.")] = "",
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the endpoint's key.")] = "",
    env: Annotated[list[str], typer.Option("--env", help="Tags of the environments; all of them by default.")] = [],
    episodes: Annotated[int, typer.Option(help="Instances per environment; 0: as the first eval table.", min=0)] = 0,
    samples: Annotated[int, typer.Option(help="Tries at each instance; pass@k up to this k.", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="Below 0: as the first eval table.")] = -1.0,
    split: Annotated[str, typer.Option(help="Which instances: val or train.")] = "val",
    out: Annotated[str, typer.Option(help="Folder; one that holds this same evaluation is gone on with.")] = "",
    as_json: Json = False,
) -> None:
    """Measure a model: success with its error, floor and ceiling, reward, turns, format errors, pass@k.

    A RUN_DIR in place of a preset stands for its configuration and its last checkpoint.
    """
    from rlctl.errors import ConfigError

    if not sources:
        raise ConfigError("which preset or RUN_DIR? e.g. `rlctl eval frozenlake-cpu --model FOLDER`")
    files, chosen = _sources(sources, model, bool(base_url))
    configuration = loaded(files, [*set_, "sft.max_steps=0", *_model(chosen, bool(base_url))])
    config = configuration.config
    folder = Path(out or Path("runs") / f"{config.run.name}-eval" / time.strftime("%Y%m%d-%H%M%S")).absolute()
    from rlctl.rollout import measure

    order = _order(config, env, chosen, base_url, api_key_env, episodes, samples, split, temperature)
    measure.save(order, folder)
    if base_url:
        import asyncio

        asyncio.run(measure.run(config, order, folder))
    else:
        from rlctl.up.evaluate import start

        start(loaded(files, [*set_, "sft.max_steps=0", *_model(chosen, False), f"run.dir={folder}"]), folder)
    results = json.loads((folder / measure.RESULTS).read_text(encoding="utf-8"))
    if as_json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        _show(results, folder)


def _sources(sources: list[str], model: str, elsewhere: bool) -> tuple[list[str], str]:
    """Configuration files, and the model: of a RUN_DIR its last checkpoint unless another one is named."""
    from rlctl.errors import ConfigError
    from rlctl.up.history.summary import checkpoint

    files, chosen = [], model
    for source in sources:
        folder = Path(source)
        if not (folder / "resolved.toml").is_file():
            files.append(source)
            continue
        files.append(str(folder / "resolved.toml"))
        if not chosen and not elsewhere:
            saved = checkpoint(folder)
            if not saved:
                raise ConfigError(f"{folder} has no checkpoint; name a model with --model")
            chosen = str(_whole(Path(saved)))
    return files, chosen


def _whole(checkpoint: Path) -> Path:
    """The model of a checkpoint, which is merged first (once) where it holds only adapters."""
    if (checkpoint / "hf").is_dir():
        return checkpoint / "hf"
    from rlctl.models.merging import whole_model

    sys.stderr.write(f"merging the adapters in {checkpoint}\n")
    return whole_model(checkpoint)


def _model(chosen: str, elsewhere: bool) -> list[str]:
    return [] if elsewhere or not chosen else ['model.init=""', f"model.path={json.dumps(chosen)}"]


def _order(
    config: "Config",
    env: list[str],
    model: str,
    base_url: str,
    api_key_env: str,
    episodes: int,
    samples: int,
    split: str,
    temperature: float,
) -> "Order":
    from rlctl.config.serving import Eval
    from rlctl.errors import ConfigError
    from rlctl.rollout.measure import Order

    tags = [one.tag or one.name for one in config.env]
    if unknown := [tag for tag in env if tag not in tags]:
        raise ConfigError(f"--env {unknown[0]}: no [[env]] has this tag (there are: {', '.join(tags) or 'none'})")
    tables = [one.model_dump(mode="json") for one, tag in zip(config.env, tags, strict=True) if tag in (env or tags)]
    if not tables:
        raise ConfigError("the configuration has no [[env]] to evaluate on")
    first = config.eval[0] if config.eval else Eval()
    warmth = first.temperature if temperature < 0 else temperature
    if samples > 1 and warmth == 0:
        raise ConfigError("--samples above 1 needs a --temperature above 0: greedy tries are all alike")
    if base_url and not model:
        raise ConfigError("--base-url needs --model, the name of the model there")
    return Order(
        envs=tables,
        model=model or config.model.path or "untrained",
        base_url=base_url,
        api_key_env=api_key_env,
        episodes=episodes or first.episodes,
        samples=samples,
        split=split,
        temperature=warmth,
        top_p=config.rollout.top_p,
        max_tokens=config.rollout.max_tokens,
    )


def _show(results: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = results["results"]
    table = Table(title=f"{results['model']}, temperature {results['temperature']:g}", title_justify="left", box=None)
    table.add_column("")
    for row in rows:
        table.add_column(row["env"], justify="right")
    for name, cells in zip(LINES, zip(*map(_cells, rows), strict=True), strict=True):
        table.add_row(name, *cells)
    for k in sorted({int(k) for row in rows for k in row["pass_at"]} - {1}):
        found = [row["pass_at"].get(str(k)) for row in rows]
        table.add_row(f"pass@{k}", *(_rate(one["mean"], one["se"]) if one else "" for one in found))
    console = Console()
    console.print(table)
    console.print(f"episodes and results in {folder}", highlight=False, soft_wrap=True)


LINES = (
    *("success", "  floor (random play)", "  ceiling (optimal play)", "reward", "turns", "format errors"),
    *("instances", "tries at each", "failed episodes"),
)


def _cells(row: dict[str, Any]) -> list[str]:
    """One environment's column, in the order of LINES."""
    return [
        _rate(row["success_rate"], row["success_se"]),
        _percent(row["floor"]),
        _percent(row["ceiling"]),
        f"{row['mean_reward']:.3f}",
        f"{row['mean_turns']:.1f}",
        f"{row['format_errors']:.2f}",
        *(str(row[name]) for name in ("instances", "samples", "failed")),
    ]


def _rate(mean: float, error: float) -> str:
    return f"{mean:.1%} ± {error:.1%}"


def _percent(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.1%}"


def measure(
    config: Annotated[list[str], typer.Option("--config", "-c", help="The resolved.toml of an evaluation.")],
    set_: Set = [],
) -> None:
    """The playing process of `rlctl eval`."""
    from rlctl.rollout.measure import main

    main(loaded(config, set_).config)


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)
    app.command(hidden=True)(measure)
