"""The plan of a run as a page for people."""

import shlex

from rich.console import Console
from rich.table import Table

from rlctl.up.run import Setup


def show(console: Console, setup: Setup) -> None:
    """Processes in order of readiness, then their command lines and environment, ready to paste into a shell."""
    table = Table(title=f"{setup.loaded.config.run.name}: {len(setup.specs)} processes", title_justify="left", box=None)
    for name in ("process", "starts after", "port", "GPU", "threads", "ready when"):
        table.add_column(name, overflow="fold")
    addresses = ports_by_name(setup)
    for spec in setup.specs:
        ready = "exit 0 ends the run" if spec.ends_run else READY[spec.ready_when]
        gpus = ",".join(map(str, spec.gpus)) or "-"
        after = ", ".join(spec.needs) or "-"
        table.add_row(spec.name, after, addresses.get(spec.name, "-"), gpus, str(spec.threads), ready)
    console.print(table)
    for spec in setup.specs:
        console.print(f"\n[bold]{spec.name}[/bold]", highlight=False)
        words = [f"{name}={shlex.quote(value)}" for name, value in spec.env.items()]
        text = " \\\n    ".join([*words, shlex.join(spec.argv)])
        console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nrun directory  {setup.run_dir} (nothing was started or written)", highlight=False, soft_wrap=True)


READY = {"announced": "announced", "exit": "exit 0"}


def ports_by_name(setup: Setup) -> dict[str, str]:
    """Process -> the port it will listen on."""
    ports = setup.ports
    found = {"pool": ports.pool, "gateway": ports.gateway, "rollout": ports.rollout, "sft": ports.sft}
    found |= {"train": ports.train, **{f"engine-{i}": port for i, port in enumerate(ports.engines)}}
    return {name: str(port) for name, port in found.items()}
