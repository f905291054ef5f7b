"""The report of a run: `summary.json`, a picture, a page for browsers, and one on the terminal."""

import importlib.util
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlctl.up.history import comparison, summary
from rlctl.up.live.progress import duration
from rlctl.up.report import curve
from rlctl.up.report.page import write

Json = dict[str, Any]


def report(run_dir: Path) -> Json:
    """Write `summary.json`, `report.html` and `report/curve.png` (where matplotlib is); returns the summary."""
    written = summary.write(run_dir)
    write.write(run_dir, written)
    if importlib.util.find_spec("matplotlib"):
        curve.draw(run_dir, written["eval"], title(written), run_dir / "report" / "curve.png")
    return written


def title(written: Json) -> str:
    return f"{written['name']}: {written['steps']} training steps"


def show(console: Console, run_dir: Path, written: Json) -> None:
    """The page for people."""
    console.print()
    console.print(
        f"[bold]{written['name']}[/bold]  {written['status']}, {written['steps']} of {written['steps_wanted']} steps, "
        f"policy version {written['policy_version']}, {duration(written['wall_s'])}",
        highlight=False,
    )
    if written["eval"]:
        console.print(evaluations(written["eval"]))
    if written["phases"]:
        console.print(times(written["phases"], written["wall_s"]))
    console.print(outcomes(written["samples"]), highlight=False, soft_wrap=True)
    if written["rewards"]["parts"]:
        console.print(rewards(written["rewards"]), highlight=False, soft_wrap=True)
    for name, one in written["trackers"].items():
        style = "yellow" if one["failures"] or one["error"] else ""
        console.print(tracked(name, one, run_dir), style=style, highlight=False, markup=False, soft_wrap=True)
    console.print(f"run directory  {run_dir}", highlight=False, soft_wrap=True)
    if written["checkpoint"]:
        console.print(f"checkpoint     {written['checkpoint']}", highlight=False, soft_wrap=True)
    if (picture := run_dir / "report" / "curve.png").exists():
        console.print(f"curve          {picture}", highlight=False, soft_wrap=True)
    if (page := run_dir / write.NAME).exists():
        console.print(f"report         {page}", highlight=False, soft_wrap=True)


def evaluations(rows: list[Json]) -> Table:
    """Before and after, with standard errors, between floor and ceiling."""
    last = rows[-1]["step"]
    after = f", before and after {last} steps (change in points)" if last > rows[0]["step"] else f" at step {last}"
    table = Table(title=f"success on held-out instances{after}", title_justify="left", title_style="bold", box=None)
    table.padding = (0, 1, 0, 0)  # fits into 80 columns
    for name in ("eval", "temp", "episodes", "floor", "before", "after", "change", "ceiling"):
        table.add_column(name, justify="left" if name == "eval" else "right", no_wrap=True)
    for row in comparison.before_and_after(rows):
        table.add_row(*row)
    return table


def times(phases: dict[str, Json], wall_s: float) -> Table:
    """CPU and wall seconds by phase, the trainer's own parts below it."""
    table = Table(title=f"time by phase ({wall_s:.0f} s)", title_justify="left", title_style="bold", box=None)
    for name in ("phase", "CPU s", "share of CPU", "wall s"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    total = sum(phase["cpu_s"] for phase in phases.values()) or 1.0
    for name, phase in phases.items():
        table.add_row(name, f"{phase['cpu_s']:.1f}", f"{phase['cpu_s'] / total:.0%}", f"{phase['wall_s']:.1f}")
        for part, value in phase.get("parts", {}).items():
            table.add_row(f"  {part}", f"{value['cpu_s']:.1f}", "", f"{value['wall_s']:.1f}", style="dim")
    return table


def outcomes(samples: Json) -> str:
    """ "1024 samples created = 900 trained + 124 stale"."""
    parts = [f"{count} {name}" for name, count in samples.items() if name != "created" and count]
    return f"samples        {samples['created']} created" + (f" = {' + '.join(parts)}" if parts else "")


def rewards(found: Json) -> str:
    """ "mean of 512 scored: env 0.41, judge 6.5; 3 x reward.judge: no_score"."""
    parts = ", ".join(f"{name} {part['mean']:.3g}" for name, part in found["parts"].items())
    errors = "".join(f"; {number} x {name}" for name, number in found["errors"].items())
    return f"rewards        mean of {found['scored']} scored: {parts}{errors}"


def tracked(name: str, one: Json, run_dir: Path) -> str:
    """ "tracker        wandb: 120 rows, 8 pictures; 2 failures; 14 not sent (error): rlctl track RUN --to wandb"."""
    text = f"tracker        {name}: {one['rows']} rows, {one['pictures']} pictures"
    text += f"; {one['failures']} failures" if one["failures"] else ""
    text += f"; {one['skipped']} pictures refused" if one["skipped"] else ""
    if one["waiting"] or one["error"]:
        text += f"; {one['waiting']} not sent ({one['error']}): rlctl track {run_dir} --to {name}"
    return text
