"""`rlctl traj RUN_DIR [UID]`: trajectories that have ended, from the run's files, on a live run as on a dead one."""

import json
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.options import Json, RunDir, existing

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlctl.wire.samples import Ended


def traj(
    run_dir: RunDir,
    uid: Annotated[str, typer.Argument(help="A trajectory; empty: the latest ones, a line each.")] = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Token by token: trained, log-probability, version.")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many of the latest.", min=1)] = 20,
    as_json: Json = False,
) -> None:
    """Show what was sampled, in which context, by which policy version, and why a trajectory forked."""
    from rlctl.wire import inspect
    from rlctl.wire.frames import read_ended

    ended = (record for _, record in read_ended(existing(run_dir) / "trajectories"))
    if not uid:
        rows = [inspect.summary(one) for one in deque(ended, maxlen=lines)]
        typer.echo(json.dumps(rows)) if as_json else _list(rows)
        return
    found = next((one for one in ended if one.trajectory.uid == uid), None)
    if found is None:
        from rlctl.errors import RlctlError

        raise RlctlError(f"{run_dir}: no trajectory {uid} has ended here, or its record was deleted for age")
    whole: dict[str, Any] = {**inspect.summary(found), "steps": inspect.steps(found)}
    text = _texts(run_dir)
    if tokens:
        trained = found.outcome == "trained"
        rows = [row for step in found.trajectory.steps for row in inspect.tokens(step, trained)]
        whole["tokens"] = [{**row, "text": text([row["id"]])} for row in rows]
    typer.echo(json.dumps(whole)) if as_json else _show(found, whole, text)


def _texts(run_dir: Path) -> "Callable[[list[int]], str]":
    """ids -> text by the run's own tokenizer; the ids themselves where it cannot be read."""
    from tokenizers import Tokenizer

    from rlctl.config import load

    path = Path(load([str(run_dir / "resolved.toml")], []).config.model_dir) / "tokenizer.json"
    if not path.is_file():
        typer.echo(f"no tokenizer at {path}: ids instead of text", err=True)
        return lambda ids: " ".join(map(str, ids))
    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def _list(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for name in ("uid", "channel", "env", "outcome", "reward", "steps", "tokens", "versions", "forks"):
        table.add_column(name)
    for row in rows:
        reward = "" if row["reward"] is None else f"{row['reward']:.3g}"
        counts = (f"{row['prompt_tokens']}+{row['response_tokens']}", ",".join(map(str, row["versions"])))
        table.add_row(
            row["uid"], row["channel"], row["env"], row["outcome"], reward, str(row["steps"]), *counts, _forks(row)
        )
    Console().print(table)


def _forks(row: dict[str, Any]) -> str:
    return ", ".join(f"{reason} x{times}" if times > 1 else reason for reason, times in row["forks"].items())


def _show(ended: "Ended", whole: dict[str, Any], text: "Callable[[list[int]], str]") -> None:
    from rich.console import Console
    from rich.markup import escape

    from rlctl.wire.arrays import unpack_ids

    console = Console(highlight=False)
    reward = "no reward" if whole["reward"] is None else f"reward {whole['reward']:.4g}"
    console.print(f"[bold]{escape(whole['uid'])}[/bold]  {whole['channel']}  {whole['outcome']}  {reward}")
    if whole["error"]:
        console.print(f"[red]{escape(whole['error'])}[/red]")
    for step, row in zip(ended.trajectory.steps, whole["steps"], strict=True):
        after = f"after step {row['parent']}" if row["parent"] >= 0 else "from the start"
        fork = f", fork: {row['fork_reason']}" if row["fork_reason"] else ""
        versions = ",".join(f"{version}:{tokens}" for version, tokens in row["versions"])
        console.print(
            f"\n[bold]step {row['step']}[/bold] {after}{fork}, {row['finish_reason']}, "
            f"{row['prompt_tokens']}+{row['response_tokens']} tokens, versions {versions or '-'}, "
            f"logprob {row['logprob']}"
        )
        for image in row.get("images", ()):
            console.print(f"image images/{image}")
        if "tokens" in whole:
            for token in (token for token in whole["tokens"] if token["step"] == row["step"]):
                console.print(_token(token), markup=False)
        else:
            console.print(escape(text(unpack_ids(step.prompt_ids).tolist())), style="dim")
            console.print(escape(text(unpack_ids(step.response_ids).tolist())), style="green")


def _token(row: dict[str, Any]) -> str:
    if not row["sampled"]:
        return f"{row['id']:>8}  prompt                       {row['text']!r}"
    kind = "trained" if row["trained"] else "sampled"
    return f"{row['id']:>8}  {kind}  {row['logprob']:>10.4f}  v{row['version']:<6}  {row['text']!r}"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Runs")(traj)
