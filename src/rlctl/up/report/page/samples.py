"""Episodes turn by turn, the same instances before and after training side by side, with frames to step through."""

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.pictures import files
from rlctl.pictures.record import Recorded, Turn
from rlctl.up.report.page.markup import Html, join, put, section, single, table, tag

BUDGET = 3_000_000
"""Bytes that episodes may take on the page; what is left out is named, and is in the run directory."""
LONGEST = 6_000
"""Characters of one message on the page."""


@dataclass
class Pictures:
    """Every different picture of the page once."""

    data: dict[str, str] = field(default_factory=dict)
    """Key -> data URI."""

    def key(self, path: Path) -> str:
        content = path.read_bytes()
        key = hashlib.sha256(content).hexdigest()[:12]
        self.data.setdefault(key, "data:image/png;base64," + base64.b64encode(content).decode())
        return key


Found = tuple[Path, Recorded]


def sections(run_dir: Path, pictures: Pictures) -> Html:
    """A section per evaluation (before, after) and one of training episodes, as far as there is room for them."""
    series: dict[str, list[Found]] = {}
    for folder, recorded in files.saved(run_dir):
        series.setdefault(recorded.series, []).append((folder, recorded))
    parts, room = [], BUDGET
    for name in sorted(series, key=lambda name: (name == "train", name.endswith("/train"), name)):
        part, room = _series(name, series[name], pictures, room)
        parts.append(part)
    return join(parts)


def _series(name: str, found: list[Found], pictures: Pictures, room: int) -> tuple[Html, int]:
    steps = sorted({recorded.step for _, recorded in found})
    columns = list(dict.fromkeys((steps[0], steps[-1])))
    rows, left_out = [], 0
    for key in dict.fromkeys((recorded.tag, recorded.number) for _, recorded in found):
        pair = [one for step in columns for one in found if (one[1].tag, one[1].number, one[1].step) == (*key, step)]
        before = sum(map(len, pictures.data.values()))
        known = set(pictures.data)
        row = tag("div", *(viewer(folder, recorded, pictures) for folder, recorded in pair), class_="pair")
        cost = len(row) + sum(map(len, pictures.data.values())) - before
        if cost > room:
            left_out += len(pair)
            for added in set(pictures.data) - known:
                del pictures.data[added]
            continue
        room -= cost
        rows.append(row)
    if left_out:
        rows.append(tag("p", f"{left_out} more are in pictures/ of the run directory.", class_="about"))
    if name == "train":
        about = "The first and the last group that was kept, by the batch it was drawn for; a group plays one instance."
        return section("Training episodes", *rows, about=about), room
    if name.endswith("/train"):
        about = "Training instances, at the first and the last check of the warm start."
        return section(f"Warm start: {name.removesuffix('/train')}", *rows, about=about), room
    about = "The same instances before and after training." if len(columns) > 1 else "Measured once so far."
    return section(f"Episodes: {name}", *rows, about=about), room


def viewer(folder: Path, recorded: Recorded, pictures: Pictures) -> Html:
    """One episode: its frames, and below them every turn."""
    kind, end = ending(recorded)
    turns = [_turn(number, turn, bool(recorded.start)) for number, turn in enumerate(recorded.turns, 1)]
    head = tag(
        "header",
        tag("strong", f"{'batch' if recorded.series == 'train' else 'step'} {recorded.step}"),
        tag("span", end, class_=f"end {kind}"),
        tag("span", f"reward {recorded.reward:g}", class_="quiet"),
        tag("code", recorded.uid, class_="uid"),
    )
    return tag(
        "article",
        head,
        _frames(folder, recorded, pictures),
        tag("ol", *turns, class_="turns"),
        aria_label=f"{recorded.tag} episode {recorded.number} at step {recorded.step}: {end}",
        class_="episode" if recorded.start else "episode bare",
    )


def ending(recorded: Recorded) -> tuple[str, str]:
    """(CSS class, words)."""
    if recorded.error:
        return "bad", f"failed: {recorded.error}"
    if recorded.success:
        return "good", "success"
    return ("poor", "out of turns") if recorded.truncated else ("poor", "lost")


def _frames(folder: Path, recorded: Recorded, pictures: Pictures) -> Html:
    if not recorded.start:
        return Html()
    shown = files.views(recorded)
    paths = [folder / f"{number:02d}.png" for number in range(len(shown))]
    keys = [pictures.key(path) for path in paths]
    script = " ".join(f"{key}:{frame.turn}" for key, frame in zip(keys, shown, strict=True))
    return tag(
        "div",
        single("img", src=pictures.data[keys[0]], alt=f"{recorded.tag}: start"),
        tag(
            "div",
            tag("button", "‹", type="button", data_move=-1, aria_label="previous frame"),
            single("input", type="range", min=0, max=len(shown) - 1, value=0, aria_label="frame"),
            tag("button", "›", type="button", data_move=1, aria_label="next frame"),
            class_="steps",
        ),
        tag("p", shown[0].caption, class_="caption", aria_live="polite"),
        tag("template", *(tag("p", frame.caption) for frame in shown)),
        class_="frames",
        data_frames=script,
    )


def _turn(number: int, turn: Turn, board: bool) -> Html:
    done = [f"{one.action} ({one.reward:+g})" if one.reward else one.action for one in turn.moments]
    actions = [", ".join(done) or "no action"] if board else []
    facts = " · ".join([f"turn {number}", *actions, f"reward {turn.reward:g}"])
    return tag(
        "li",
        *(tag("pre", cut(one["content"]), class_="prompt", title=one["role"]) for one in turn.prompt),
        tag("pre", cut(turn.answer), class_="answer", title="assistant"),
        tag("p", facts, " ", None if turn.readable else tag("span", "not readable", class_="end bad")),
        data_turn=number,
    )


def cut(text: str) -> str:
    """At most LONGEST characters, with a word about the rest."""
    over = len(text) - LONGEST
    return text if over <= 0 else f"{text[:LONGEST]}\n[... {over} more characters]"


def endings(recorded: list[Recorded]) -> Html:
    """Failed episodes among those kept, with their messages."""
    failed = [one for one in recorded if one.error]
    rows = [(one.series, one.step, tag("code", one.uid), put(one.error)) for one in failed]
    return table(("series", "step", "trajectory", "why"), rows, "Failed episodes", (0, 2, 3)) if rows else Html()
