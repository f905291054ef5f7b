"""Which curves a run has: rows of its metrics -> charts. Pure."""

from itertools import pairwise
from typing import Any

from rlctl.up.report.curve import smoothed
from rlctl.up.report.page.charts import Chart, Line, Point

Row = dict[str, Any]
COLOURS = 5


def success(evals: list[Row], train: list[Row]) -> Chart:
    """Held-out success with standard errors between floor and ceiling; success of the training rollouts behind it."""
    lines = [Line("training rollouts, smoothed", _smooth(train, "success"), pale=True)]
    several = len({row["env"] for row in evals}) > 1
    for number, key in enumerate(dict.fromkeys((row["env"], row["name"]) for row in evals)):
        rows = [row for row in evals if (row["env"], row["name"]) == key]
        greedy = rows[0]["temperature"] == 0
        name = ("/".join(key) if several else key[1]) + (
            " (greedy)" if greedy else f" (temperature {rows[0]['temperature']:g})"
        )
        points = [Point(row["step"], row["success_rate"], row["success_se"]) for row in rows]
        lines.append(Line(name, points, number % COLOURS, dashed=greedy, marks=True))
    about = "On held-out instances, with standard errors; dotted: random and optimal play on the same instances."
    return Chart("Success", lines, about if evals else "", True, _levels(evals, several), low=0.0, high=1.0)


def _levels(evals: list[Row], several: bool) -> tuple[tuple[str, float], ...]:
    found: dict[tuple[str, float], None] = {}
    for row in evals:
        for kind, name in (("floor", "random"), ("ceiling", "optimal")):
            if row.get(kind) is not None:
                found[f"{row['env']}: {name}" if several else name, round(row[kind], 3)] = None
    return tuple(found)


def small(train: list[Row], sft: list[Row]) -> list[Chart]:
    """The others, in the order of the page; a chart without any value is left out by its drawing."""
    return [
        Chart("Reward", _both(train, "reward_mean"), "Mean over the batch; pale: unsmoothed."),
        Chart("Loss", _both(train, "loss"), "Per token, mean over the optimizer steps."),
        Chart("Entropy", _both(train, "entropy"), "Of the policy, nats per trained token."),
        Chart(
            "Mismatch",
            [
                Line("mean |Δ logprob|", _points(train, "logprob_gap_mean"), 0),
                Line("KL to behaviour", _points(train, "kl_behaviour"), 1),
                Line("KL to reference", _points(train, "kl_reference"), 2),
            ],
            "Trainer against engine, before the update.",
        ),
        Chart(
            "Staleness",
            [Line("mean", _points(train, "staleness_mean"), 0), Line("max", _points(train, "staleness_max"), 1, True)],
            "Policy versions between sampling and training.",
        ),
        Chart("Tokens per second", [Line("", rates(train), 0)], "Trained response tokens by wall time."),
        Chart("Gradient norm", _both(train, "grad_norm"), "Before clipping."),
        Chart(
            "Groups without signal",
            _both(train, "zero_variance_share"),
            "Share of groups whose rewards are all alike.",
            percent=True,
            low=0.0,
            high=1.0,
        ),
        Chart("Warm start: loss", [Line("", _points(sft, "loss"), 2)], "On demonstrations, per token."),
        Chart(
            "Warm start: success",
            [Line("", _points(sft, "success"), 2, marks=True)],
            "On training instances.",
            percent=True,
        ),
    ]


def rates(rows: list[Row]) -> list[Point]:
    """Tokens of a step over the wall time since the step before; a step after a resume has no rate."""
    return [
        Point(after["step"], after["tokens"] / (after["t"] - before["t"]))
        for before, after in pairwise(rows)
        if after.get("tokens") and after["t"] > before["t"] and after["step"] == before["step"] + 1
    ]


def _points(rows: list[Row], key: str) -> list[Point]:
    return [Point(row["step"], row[key]) for row in rows if row.get(key) is not None]


def _smooth(rows: list[Row], key: str) -> list[Point]:
    points = _points(rows, key)
    return [Point(p.x, y) for p, y in zip(points, smoothed([p.y for p in points]), strict=True)]


def _both(rows: list[Row], key: str) -> list[Line]:
    return [Line("", _points(rows, key), 0, pale=True), Line("", _smooth(rows, key), 0)]
