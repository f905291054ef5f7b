"""`rlctl top RUN_DIR`: the run as it is now, drawn again and again, from the pool's live numbers and its files."""

import json
import signal
from typing import Annotated

import typer

from rlctl.cli.options import Json, RunDir, existing

WAIT_S = 1.0
"""For the pool's next word: it speaks twice a second."""


def top(
    run_dir: RunDir,
    once: Annotated[bool, typer.Option("--once", help="One look, then end.")] = False,
    as_json: Json = False,
) -> None:
    """Queue, groups by state, samples by outcome, policy versions, throughput of every component; Ctrl-C ends it.

    With --json one JSON object a line, where it is not --once as long as it runs.
    """
    from rich.console import Console
    from rich.live import Live

    from rlctl.up.live.dashboard import picture
    from rlctl.up.live.top import Watch

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    watch = Watch(existing(run_dir))
    console = Console()
    try:
        if once or as_json or not console.is_terminal:
            while True:
                moment = watch.read(WAIT_S)
                typer.echo(json.dumps(moment)) if as_json else console.print(picture(moment))
                if once or not as_json:
                    return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(watch.read(WAIT_S)), refresh=True)
    finally:
        watch.close()


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Runs")(top)
