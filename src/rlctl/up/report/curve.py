"""The learning curve as a picture: success on held-out instances with standard errors, floor and ceiling."""

from pathlib import Path
from typing import Any

from rlctl.telemetry.metrics import read

Row = dict[str, Any]
COLOURS = ("#1f5fa8", "#d1661f", "#2b8a57", "#8a3f9b", "#8c6d1f")
QUIET = "#6b7280"
SMOOTH = 0.15
"""Weight of a new point in the exponential mean of the training reward."""


def draw(run_dir: Path, evals: list[Row], title: str, path: Path) -> Path | None:
    """Write a PNG to `path`; None when there is nothing to draw. Needs matplotlib (extra `train`)."""
    measured = (row for row in read(run_dir / "metrics" / "train.jsonl") if row.get("reward_mean") is not None)
    steps = {row["step"]: row for row in measured}  # of a step done again after a crash, the last row counts
    rows = [steps[step] for step in sorted(steps)]
    if not evals and not rows:
        return None
    figure = _figure(6.0 if rows else 4.2, title)
    if rows:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        _reward(lower, rows)
    else:
        upper = lower = figure.subplots()
    _success(upper, evals, [row for row in rows if row.get("success") is not None])
    return _save(figure, path)


def compare(series: dict[str, list[list[Row]]], title: str, path: Path) -> Path:
    """One curve per name: the mean over its runs with the standard error of that mean; the runs pale behind it.

    `series`: name -> the evaluations of each of its runs.
    """
    figure = _figure(4.6, title)
    axes = figure.subplots()
    for (name, runs), colour in zip(series.items(), COLOURS * len(series), strict=False):
        for run in runs:
            axes.plot([r["step"] for r in run], [r["success_rate"] for r in run], color=colour, alpha=0.25, linewidth=1)
        steps = sorted({row["step"] for run in runs for row in run})
        rows = [[row for run in runs for row in run if row["step"] == step] for step in steps]
        means = [sum(row["success_rate"] for row in part) / len(part) for part in rows]
        errors = [sum(row["success_se"] ** 2 for row in part) ** 0.5 / len(part) for part in rows]
        label = f"{name} ({len(runs)} run{'s' * (len(runs) > 1)})"
        axes.errorbar(steps, means, yerr=errors, color=colour, marker="o", markersize=4.5, capsize=3, label=label)
    _rates(axes, [row for runs in series.values() for run in runs for row in run])
    return _save(figure, path)


def _figure(height: float, title: str) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _save(figure: Any, path: Path) -> Path:
    figure.axes[-1].set_xlabel("training step")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _success(axes: Any, evals: list[Row], rows: list[Row]) -> None:
    """Evaluations with error bars; training success smoothed and pale behind them; floor and ceiling as lines."""
    if rows:
        steps = [row["step"] for row in rows]
        label = "training rollouts (smoothed)"
        axes.plot(steps, smoothed([row["success"] for row in rows]), color="#9ca3af", linewidth=1.2, label=label)
    names = list(dict.fromkeys((row["env"], row["name"]) for row in evals))
    several = len({env for env, _ in names}) > 1
    for (env, name), colour in zip(names, COLOURS * len(names), strict=False):
        points = [row for row in evals if (row["env"], row["name"]) == (env, name)]
        greedy = points[0]["temperature"] == 0
        label = f"{env} {name}" if several else name
        axes.errorbar(
            [row["step"] for row in points],
            [row["success_rate"] for row in points],
            yerr=[row["success_se"] for row in points],
            color=colour,
            marker="s" if greedy else "o",
            markersize=4.5,
            linewidth=1.8,
            linestyle="--" if greedy else "-",
            capsize=3,
            label=f"{label} (greedy)" if greedy else f"{label} (temperature {points[0]['temperature']:g})",
        )
    _rates(axes, evals)


def _rates(axes: Any, evals: list[Row]) -> None:
    """The axis of success rates, with floor, ceiling and legend."""
    _limits(axes, evals)
    axes.set_ylabel("success rate (± standard error)")
    axes.set_ylim(-0.02, 1.06)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if axes.get_legend_handles_labels()[0]:
        # above the axes: inside, it would touch a curve or the line of optimal play sooner or later
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=8.5, frameon=False, borderaxespad=0.1)


def _limits(axes: Any, evals: list[Row]) -> None:
    """A line for every different floor and ceiling, named at the right edge."""
    several = len({row["env"] for row in evals}) > 1
    seen = set()
    for row in evals:
        for kind, text in (("floor", "random play"), ("ceiling", "optimal play")):
            value = row.get(kind)
            if value is None or (row["env"], kind, round(value, 3)) in seen:
                continue
            seen.add((row["env"], kind, round(value, 3)))
            axes.axhline(value, color=QUIET, linewidth=1.0, linestyle=(0, (1, 2)))
            name = f"{row['env']}: {text}" if several else text
            axes.annotate(
                f"{name} {value:.1%}",
                xy=(0.995, value),
                xycoords=("axes fraction", "data"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=QUIET,
            )


def _reward(axes: Any, rows: list[Row]) -> None:
    steps = [row["step"] for row in rows]
    rewards = [row["reward_mean"] for row in rows]
    axes.plot(steps, rewards, color=COLOURS[0], linewidth=0.7, alpha=0.3)
    axes.plot(steps, smoothed(rewards), color=COLOURS[0], linewidth=1.8)
    axes.set_ylabel("training reward")


def smoothed(values: list[float], weight: float = SMOOTH) -> list[float]:
    """Exponential moving mean without the bias of its start: m_i = sum_j w (1-w)^(i-j) x_j / sum_j w (1-w)^(i-j)."""
    result, total, norm = [], 0.0, 0.0
    for value in values:
        total = (1 - weight) * total + weight * value
        norm = (1 - weight) * norm + weight
        result.append(total / norm)
    return result
