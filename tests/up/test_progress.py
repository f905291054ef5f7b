"""What is shown while a run goes on."""

import io

from rich.console import Console

from rlctl.up.history.snapshot import Snapshot
from rlctl.up.live.progress import duration, line, progress, table

EVAL = {"name": "val", "env": "lake", "step": 20, "success_rate": 0.5, "success_se": 0.03, "floor": 0.1, "ceiling": 1.0}
MOMENT = Snapshot(
    stage="train",
    step=21,
    steps=80,
    reward=0.4321,
    success=0.5,
    tokens_per_s=12345.6,
    staleness=0.25,
    queue=3,
    version=21,
    eta_s=75.0,
    evals=(EVAL,),
    components={"pool": "ready", "engine-0": "dead"},
)


def test_a_line_holds_everything_and_no_rate_without_error_floor_and_ceiling() -> None:
    assert line(MOMENT) == (
        "train step 21/80 | reward 0.432 | success 50.0%"
        " | eval val 50.0% ± 3.0% @ step 20 (floor 10.0%, ceiling 100.0%)"
        " | tokens/s 12,346 | staleness 0.25 | queue 3 | version 21 | ETA 1:15"
    )


def test_the_table_holds_everything_and_every_component() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(table(MOMENT, "mine", 3700))
    page = console.export_text()
    for text in ("mine", "1:01:40", "21/80", "0.432", "12,346", "0.25", "1:15", "pool ready", "engine-0 dead"):
        assert text in page


def test_lines_come_at_their_time_and_when_the_stage_changes() -> None:
    now = 0.0
    out = io.StringIO()
    shown = progress(Console(file=out, width=200), "mine", every_s=10.0, clock=lambda: now)
    stages = {0.0: "prepare", 3.0: "prepare", 5.0: "sft", 9.0: "sft", 15.1: "sft"}
    for now, stage in stages.items():  # noqa: B007
        shown.show(lambda stage=stage: Snapshot(stage=stage))
    assert [text.split()[0].strip(":") for text in out.getvalue().splitlines()] == ["prepare", "sft", "sft"]


def test_a_terminal_gets_the_live_table() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress(console, "mine", every_s=10.0, clock=lambda: 1.0) as shown:
        shown.show(lambda: MOMENT)
    assert "engine-0" in out.getvalue() and "\x1b[" in out.getvalue()


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]
