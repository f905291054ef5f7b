"""Tables of the page: measurements, accounts, failures, times, configuration, machine."""

from collections import Counter
from pathlib import Path
from typing import Any

from rlctl.config import Config, load
from rlctl.config.explain import explain, flat
from rlctl.telemetry.metrics import read
from rlctl.up.history.comparison import before_and_after, rate
from rlctl.up.history.snapshot import folded as total
from rlctl.up.history.snapshot import last_row
from rlctl.up.planning import provenance
from rlctl.up.report.page.markup import Html, folded, join, table, tag

Json = dict[str, Any]


def evaluations(rows: list[Json]) -> Html:
    """Before and after between floor and ceiling, and every measurement below."""
    if not rows:
        return Html()
    head = ("evaluation", "temperature", "episodes", "random play", "before", "after", "change", "optimal play")
    whole = [
        (
            *(row["step"], f"{row['env']}/{row['name']}", rate(row), f"{row['mean_reward']:.3g}"),
            *(row["episodes"], row["failed"] or "", row["policy_version"]),
        )
        for row in rows
    ]
    every = ("step", "evaluation", "success", "mean reward", "episodes", "failed", "policy version")
    return join(
        (
            table(head, before_and_after(rows), "Success on held-out instances, ± standard error"),
            folded("Every measurement", table(every, whole, "All measurements", (1,))),
        )
    )


def accounts(samples: Json) -> Html:
    """Every sample in exactly one outcome: a bar and its numbers."""
    if not samples["created"]:
        return Html()
    outcomes = [(name, count) for name, count in samples.items() if name != "created" and count]
    bar = [
        tag("i", class_=f"part c{number % 5}", style=f"flex-grow:{count}", title=f"{name}: {count}")
        for number, (name, count) in enumerate(outcomes)
    ]
    rows: list[tuple[Any, ...]] = [
        (join((tag("i", class_=f"key block c{number % 5}"), name)), f"{count:,}", f"{count / samples['created']:.1%}")
        for number, (name, count) in enumerate(outcomes)
    ]
    rows.append(("created", f"{samples['created']:,}", "100.0%"))
    return join((tag("div", *bar, class_="bar", aria_hidden="true"), table(("outcome", "samples", "share"), rows, "")))


def failures(run_dir: Path) -> Html:
    """How training episodes ended, and what went wrong in scoring and in the gateway, by cause."""
    metrics = run_dir / "metrics"
    rollout = list(read(metrics / "rollout.jsonl"))
    names = dict.fromkeys(key for row in rollout for key in row if key.startswith("ends."))
    ends = Counter({name.removeprefix("ends."): int(total(rollout, name)) for name in names})
    episodes = sum(ends.values())
    rows = [("training episodes", name, f"{count:,}", f"{count / episodes:.1%}") for name, count in ends.most_common()]
    reward, gateway = last_row(metrics / "reward.jsonl"), last_row(metrics / "gateway.jsonl")
    rows += [("scoring errors", name, f"{count:,}", "") for name, count in reward.get("errors", {}).items()]
    rows += [("gateway errors", "all", f"{gateway['errors']:,}", "")] if gateway.get("errors") else []
    rows += [("forked contexts", name, f"{count:,}", "") for name, count in gateway.get("forks", {}).items()]
    return table(("what", "cause", "count", "share"), rows, "", (0, 1)) if rows else Html()


def times(phases: dict[str, Json]) -> Html:
    """CPU and wall seconds by phase, the trainer's parts below it."""
    if not phases:
        return Html()
    cpu = sum(phase["cpu_s"] for phase in phases.values()) or 1.0
    rows: list[tuple[Any, ...]] = []
    for name, phase in phases.items():
        share = phase["cpu_s"] / cpu
        meter = tag("span", tag("i", style=f"width:{100 * share:.1f}%"), class_="meter", aria_hidden="true")
        rows.append((name, f"{phase['cpu_s']:.1f}", join((meter, f"{share:.0%}")), f"{phase['wall_s']:.1f}"))
        for part, value in phase.get("parts", {}).items():
            rows.append((tag("span", part, class_="inner"), f"{value['cpu_s']:.1f}", "", f"{value['wall_s']:.1f}"))
    return table(("phase", "CPU s", "share of CPU", "wall s"), rows, "")


def configuration(run_dir: Path) -> Html:
    """What was set and where; the defaults folded below."""
    resolved = run_dir / "resolved.toml"
    if not resolved.exists():
        return Html()
    places = provenance.read(run_dir)["places"]
    usual = {row["key"]: row["default"] for section in Config.model_fields for row in explain(section, None)}
    chosen, defaults = [], []
    for key, value in flat(load([resolved], environ={}).config).items():
        row = (tag("code", key), tag("code", _value(value)))
        plain = ".".join(part for part in key.split(".") if not part.isdigit())
        default = list(usual[plain]) if isinstance(usual.get(plain), tuple) else usual.get(plain)
        place = provenance.place(key, places)
        # a table's own line is no origin of the keys that it leaves at their defaults
        if key in places or (place and value != default):
            chosen.append((*row, _origin(place)))
        else:
            defaults.append(row)
    return join(
        (
            table(("key", "value", "set by"), chosen, "", (0, 1, 2)) if chosen else None,
            folded(f"{len(defaults)} keys with their defaults", table(("key", "value"), defaults, "", (0, 1))),
        )
    )


def _value(value: Any) -> str:
    return "true" if value is True else "false" if value is False else '""' if value == "" else str(value)


def _origin(place: str) -> Html:
    """The file's name and line; its folder when one points at it."""
    return tag("span", place if place.startswith(("-s ", "RLCTL__")) else Path(place).name, title=place)


def machine(run_dir: Path) -> Html:
    rows = [(row["name"], row["value"]) for row in provenance.read(run_dir)["machine"] if row["ok"] or row["needed"]]
    return table(("", ""), rows, "", (0, 1)) if rows else Html()
