"""`report.html`: gathers what a run left behind, and writes it as one page without outside parts.

summary, metrics/*.jsonl, pictures/, resolved.toml, provenance.json --> sections --> report.html
"""

import json
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlctl.disk.files import write_text
from rlctl.pictures.files import saved
from rlctl.telemetry.metrics import read
from rlctl.up.history.summary import once_per_step
from rlctl.up.live.progress import duration
from rlctl.up.report.page import curves, facts, samples
from rlctl.up.report.page.charts import figure
from rlctl.up.report.page.markup import Html, join, section, tag

NAME = "report.html"
WIDE, HIGH = 980, 300
"""Of the first chart, in pixels."""

Json = dict[str, Any]


def write(run_dir: Path, summary: Json) -> Path:
    """Write the page in one stroke, so that a browser never reads half of it."""
    path = run_dir / NAME
    write_text(path, page(run_dir, summary))
    return path


def page(run_dir: Path, summary: Json) -> str:
    """The whole document."""
    metrics = run_dir / "metrics"
    train = once_per_step([row for row in read(metrics / "train.jsonl") if "step" in row])
    sft = [row for row in read(metrics / "sft.jsonl") if "step" in row]
    pictures = samples.Pictures()
    body = (
        head(summary),
        section(
            "Learning",
            figure(curves.success(summary["eval"], train), WIDE, HIGH),
            facts.evaluations(summary["eval"]),
            tag("div", *(figure(chart) for chart in curves.small(train, sft)), class_="charts"),
        ),
        samples.sections(run_dir, pictures),
        section(
            "How episodes ended",
            facts.failures(run_dir),
            samples.endings([recorded for _, recorded in saved(run_dir)]),
            about="Lost: the environment ended the episode. Truncated: out of turns, actions or context.",
        ),
        section("Samples", facts.accounts(summary["samples"]), about="Every sample ends in exactly one of these."),
        section("Time", facts.times(summary["phases"]), about=f"{summary['wall_s']:.0f} s of wall time, by process."),
        section("Configuration", facts.configuration(run_dir)),
        section("Machine", facts.machine(run_dir)),
        tag("footer", f"Written {time.strftime('%Y-%m-%d %H:%M:%S %Z')} by rlctl. The files are in {run_dir}."),
    )
    return document(f"{summary['name']}: report", tag("main", *body), pictures)


def head(summary: Json) -> Html:
    """Name, state, and the few numbers that matter most."""
    tiles = [
        ("steps", f"{summary['steps']} of {summary['steps_wanted']}", f"policy version {summary['policy_version']}"),
        ("wall time", duration(summary["wall_s"]), ""),
        ("trained", f"{summary['tokens']['trained']:,}", f"tokens, {summary['samples']['trained']:,} episodes"),
    ]
    if summary["eval"]:
        name = summary["eval"][0]["name"]
        rows = [row for row in summary["eval"] if row["name"] == name and row["env"] == summary["eval"][0]["env"]]
        first, last = rows[0], rows[-1]
        limits = [f"{text} {last[key]:.1%}" for key, text in (("floor", "random"), ("ceiling", "optimal"))
                  if last[key] is not None]  # fmt: skip
        before = f"{first['success_rate']:.1%} → " if len(rows) > 1 else ""
        detail = f"± {last['success_se']:.1%} ({', '.join(limits)})" if limits else f"± {last['success_se']:.1%}"
        tiles.insert(0, (f"success, {name}", f"{before}{last['success_rate']:.1%}", detail))
    cards = [tag("div", tag("dt", name), tag("dd", value), tag("dd", small)) for name, value, small in tiles]
    state = summary["status"]
    kind = {"ok": "good", "running": "poor", "unknown": "poor"}.get(state, "bad")
    title = tag("h1", summary["name"], " ", tag("span", state, class_=f"end {kind}"))
    return tag("header", title, tag("p", summary["error"], class_="problem") if summary["error"] else None,
               tag("dl", *cards, class_="tiles"), class_="top")  # fmt: skip


def document(title: str, body: Html, pictures: samples.Pictures) -> str:
    """Everything in one file; the policy forbids the page to load anything at all."""
    here = files("rlctl.up.report.page")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    data = json.dumps(pictures.data, separators=(",", ":"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return join(
        (
            Html('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">'),
            tag("title", title),
            tag("style", Html(style)),
            Html("</head><body>\n"),
            body,
            tag("script", Html(data), type="application/json", id="pictures"),
            tag("script", Html(script)),
            Html("</body></html>\n"),
        )
    )
