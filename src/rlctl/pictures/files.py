"""Recorded episodes on disk: pictures/SERIES/step-000020/TAG-0/ with episode.json, 00.png, 01.png, ..., episode.gif."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from PIL import Image

from rlctl.disk.files import write_text, write_whole
from rlctl.pictures.boards import board, drawn, reduced
from rlctl.pictures.record import Recorded
from rlctl.pictures.words import captioned, pages

FOLDER, RECORD, ANIMATION = "pictures", "episode.json", "episode.gif"
FRAME_MS, LAST_MS = 600, 1800


class Frame(NamedTuple):
    """One picture of an episode."""

    turn: int
    """0 before the first answer, then 1, 2, ..."""
    caption: str
    text: str
    """What is to be seen, as text: the board, or the last words."""
    picture: Image.Image | None = None


def views(recorded: Recorded) -> list[Frame]:
    """The frames of an episode without their pictures: the start, then one per action, or one per answer."""
    if not recorded.start:
        return [Frame(number, f"turn {number}", turn.answer) for number, turn in enumerate(recorded.turns, 1)]
    frames = [Frame(0, "start", recorded.start)]
    for number, turn in enumerate(recorded.turns, 1):
        for moment in turn.moments:
            frames.append(Frame(number, f"turn {number}: {moment.action}, reward {moment.reward:g}", moment.view))
        if not turn.moments:
            reason = "no action" if turn.readable else "answer not readable"
            frames.append(Frame(number, f"turn {number}: {reason}", frames[-1].text))
    return frames


def frames(recorded: Recorded) -> list[Frame]:
    """The frames with their pictures: boards as tiles where they have some, everything else as text."""
    found = views(recorded)
    if recorded.start and drawn(recorded.env):
        return [frame._replace(picture=board(recorded.env, frame.text)) for frame in found]
    if recorded.start:
        texts = [[(frame.caption, frame.text)] for frame in found]
    else:
        said = [[(one["role"], one["content"]) for one in turn.prompt] for turn in recorded.turns]
        texts = [[*parts, ("assistant", turn.answer)] for parts, turn in zip(said, recorded.turns, strict=True)]
    return [frame._replace(picture=picture) for frame, picture in zip(found, pages(texts), strict=True)]


def path_of(run_dir: Path, recorded: Recorded) -> Path:
    """The folder of an episode; a later life of the run that plays it again writes it again."""
    series, tag = (re.sub(r"[^\w.-]+", "-", name) for name in (recorded.series, recorded.tag))
    return run_dir / FOLDER / series / f"step-{recorded.step:06d}" / f"{tag}-{recorded.number}"


def save(run_dir: Path, recorded: Recorded) -> Path:
    """Write the record, its frames and their animation.

    Others read while this writes (the page of a run, trackers): every file gets its name when it is whole, and the
    record comes after what it stands for.
    """
    folder = path_of(run_dir, recorded)
    folder.mkdir(parents=True, exist_ok=True)
    made = [(frame, picture) for frame in frames(recorded) if (picture := frame.picture) is not None]
    names = [f"{number:02d}.png" for number in range(len(made))]
    for name, (_, picture) in zip(names, made, strict=True):
        write_whole(folder / name, partial(reduced(picture).save, format="png", optimize=True))
    if made:
        first, *rest = [reduced(captioned(picture, frame.caption)) for frame, picture in made]
        durations = [FRAME_MS] * len(rest) + [LAST_MS]
        animated = partial(first.save, format="gif", save_all=True, append_images=rest, duration=durations, loop=0)
        write_whole(folder / ANIMATION, animated)
    text = msgspec.json.format(msgspec.json.encode(recorded), indent=1).decode() + "\n"
    write_text(folder / RECORD, text)
    for old in folder.glob("*.png"):  # of an earlier life that played it longer
        if old.name not in names:
            old.unlink()
    return folder


def records(run_dir: Path) -> list[Path]:
    """Records of all episodes of a run, by series, step, environment and number."""
    return sorted((run_dir / FOLDER).glob(f"*/step-*/*/{RECORD}"))


def saved(run_dir: Path) -> Iterator[tuple[Path, Recorded]]:
    """All recorded episodes of a run with their folders."""
    for path in records(run_dir):
        yield path.parent, msgspec.json.decode(path.read_bytes(), type=Recorded)
