"""The command line. Heavy imports happen inside the commands, after parsing, so `rlctl --help` stays fast."""

import os
import sys

import typer

from rlctl.cli import components, data, doctor, evaluate, merge, reward, runs, settings, sftgen, top, track, traj, up
from rlctl.errors import RlctlError

app = typer.Typer(
    name="rlctl",
    help="Agentic reinforcement learning of language models: `rlctl up PRESET` runs everything on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (up, runs, top, traj, track, components, reward, evaluate, merge, sftgen, data, settings, doctor):
    module.register(app)


def main() -> None:
    """The one boundary: messages for people, exit codes as documented, no traceback for a user's mistake."""
    try:
        app(standalone_mode=True)
    except RlctlError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            sys.stderr.write(f"error: {line}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
