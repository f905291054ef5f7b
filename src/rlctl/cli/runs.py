"""Commands about a run directory: status, logs, stop, report. They read files only, so they work on a dead run too."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.options import Json, RunDir, existing

if TYPE_CHECKING:
    from rich.table import Table

STOP_S = 15.0


def status(run_dir: RunDir, as_json: Json = False) -> None:
    """What runs, where it listens, how far it is."""
    from rlctl.up.live.status import status as read

    found = read(existing(run_dir))
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.console import Console

    run = found["run"]
    console = Console()
    console.print(f"[bold]{run['name']}[/bold]  {run['status']}, step {run['step']}/{run['steps']}", highlight=False)
    console.print(_table(found["components"]))


def _table(components: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(box=None)
    for name in ("name", "pid", "state", "url", "policy_version"):
        table.add_column(name.replace("_", " "))
    for row in components:
        table.add_row(
            *("" if row[key] is None else str(row[key]) for key in ("name", "pid", "state", "url")), _shown(row)
        )
    return table


def _shown(row: dict[str, Any]) -> str:
    return "" if row["policy_version"] is None else str(row["policy_version"])


def logs(
    run_dir: RunDir,
    name: Annotated[str, typer.Argument(help="A component, e.g. engine-0; all of them when empty.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the logs grow.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="Last lines of each log.", min=0)] = 50,
) -> None:
    """Show logs of a run."""
    paths = _logs(existing(run_dir), name)
    offsets = {}
    for path in paths:
        text = path.read_bytes()
        offsets[path] = len(text)
        rows = text.decode(errors="replace").splitlines()
        for row in rows[max(0, len(rows) - lines) :]:
            typer.echo(_prefixed(path, row, len(paths)))
    while follow:
        time.sleep(0.3)
        for path in _logs(run_dir, name):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            offsets[path] = offsets.get(path, 0) + len(whole)
            for row in whole.decode(errors="replace").splitlines():
                typer.echo(_prefixed(path, row, len(paths)))


def _logs(run_dir: Path, name: str) -> list[Path]:
    from rlctl.config.suggest import nearest
    from rlctl.errors import ConfigError

    paths = sorted((run_dir / "logs").glob("*.log"))
    names = [path.stem for path in paths]
    if name and name not in names:
        hint = nearest(name, names)
        raise ConfigError(
            f"no log of {name!r}" + (f"; did you mean {hint!r}?" if hint else f"; there are: {', '.join(names)}")
        )
    return [path for path in paths if not name or path.stem == name]


def _prefixed(path: Path, row: str, count: int) -> str:
    return f"{path.stem:10} | {row}" if count > 1 else row


def stop(run_dir: RunDir, as_json: Json = False) -> None:
    """End a run in order, as Ctrl-C in its terminal would."""
    from rlctl.up.live.status import stop as end

    stopped = end(existing(run_dir), STOP_S)
    if as_json:
        typer.echo(json.dumps({"run": str(run_dir), "stopped": stopped}))
    else:
        typer.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running", err=True)


def report(run_dir: RunDir, as_json: Json = False) -> None:
    """Write summary.json and report/curve.png again from the run's files, and show the report."""
    from rich.console import Console

    from rlctl.up.report.report import report as write
    from rlctl.up.report.report import show

    written = write(existing(run_dir))
    if as_json:
        typer.echo(json.dumps(written))
    else:
        show(Console(), run_dir, written)


def register(app: typer.Typer) -> None:
    for command in (status, logs, stop, report):
        app.command(rich_help_panel="Runs")(command)
