"""`rlctl data stats | export | import`: datasets out of a run's ended trajectories, and into training again."""

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.options import Json, RunDir, existing

if TYPE_CHECKING:
    from rlctl.data.choose import Choice

app = typer.Typer(no_args_is_help=True, help="Datasets out of runs and into them.")
Channel = Annotated[str, typer.Option(help="train, val, ...; '' for every channel.")]
Outcome = Annotated[str, typer.Option(help="trained, stale, failed, ...")]
EnvTag = Annotated[str, typer.Option("--env", help="Tag of an environment.")]
MinReward = Annotated[float | None, typer.Option(help="Lowest reward.")]
MaxReward = Annotated[float | None, typer.Option(help="Highest reward.")]
MinVersion = Annotated[int | None, typer.Option(help="Lowest policy version of any token.")]
MaxVersion = Annotated[int | None, typer.Option(help="Highest policy version of any token.")]
MinTokens = Annotated[int | None, typer.Option(help="Fewest sampled tokens.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most sampled tokens.")]
Text = Annotated[str, typer.Option(help="Regular expression that an answer must match.")]


def _choice(
    channel: Channel = "train",
    outcome: Outcome = "",
    env: EnvTag = "",
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    min_version: MinVersion = None,
    max_version: MaxVersion = None,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    text: Text = "",
) -> "Choice":
    from rlctl.data.choose import Choice

    return Choice(channel, outcome, env, min_reward, max_reward, min_version, max_version, min_tokens, max_tokens, text)


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of `_choice` in the place of its parameter `choice`."""
    options, own = inspect.signature(_choice).parameters, inspect.signature(command)

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        command(choice=_choice(**{name: given.pop(name) for name in options}), **given)

    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters += options.values() if parameter.name == "choice" else [parameter]
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


@app.command()
@choosing
def stats(
    run_dir: RunDir,
    choice: "Choice",
    as_json: Json = False,
) -> None:
    """Numbers about the trajectories that have ended."""
    from rlctl.data.choose import chosen
    from rlctl.data.statistics import statistics

    found = statistics(chosen(existing(run_dir), choice, _decoder(run_dir) if choice.text else None))
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in found.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:16} {shown}")


@app.command()
@choosing
def export(
    run_dir: RunDir,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .jsonl or .parquet file.")],
    choice: "Choice",
    form: Annotated[str, typer.Option("--format", help="native, trl-sft, trl-dpo or verl.")] = "native",
    as_json: Json = False,
) -> None:
    """Write the chosen trajectories as a dataset, with a manifest beside it; the same run gives the same bytes."""
    _tell(_export(existing(run_dir), out, form, choice), as_json)


def _export(run_dir: Path, out: Path, form: str, choice: "Choice") -> dict[str, Any]:
    from rlctl.data import files
    from rlctl.data.choose import chosen, feedback
    from rlctl.data.formats import FORMATS, shaped
    from rlctl.data.rows import source
    from rlctl.errors import ConfigError

    if form not in FORMATS:
        raise ConfigError(f"--format {form}: no such format; there are: {', '.join(FORMATS)}")
    where, decode = source(run_dir), _decoder(run_dir)
    rows = shaped(chosen(run_dir, choice, decode), form, where, decode, feedback(run_dir))
    about = {"format": form, "run": where.run, "config_hash": where.config_hash, "choice": asdict(choice)}
    return files.write(out, rows, about)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl or .parquet dataset.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Recorded batches, or demonstrations (JSONL).")],
    groups_per_step: Annotated[int, typer.Option(help="Groups of one training step, for native rows.", min=1)] = 16,
    as_json: Json = False,
) -> None:
    """Native rows become batches for `train.replay`; chat logs and TRL's formats demonstrations for `sft.data.path`."""
    from rlctl.data.importing import load

    _tell(load(file, out, groups_per_step), as_json)


def _decoder(run_dir: Path) -> Any:
    from rlctl.data.text import decoder

    return decoder(run_dir)


def _tell(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo("\n".join(f"{name:20} {value}" for name, value in found.items()))


def register(to: typer.Typer) -> None:
    to.add_typer(app, name="data", rich_help_panel="Data")
