"""What is written down of an episode, and how it is drawn."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from PIL import Image

from rlctl.config.serving import Env
from rlctl.envs.lookup import family
from rlctl.pictures import files
from rlctl.pictures.boards import board, drawn, tiles
from rlctl.pictures.words import LINES, MISSING, pages, wrapped
from tests.pictures.playing import played


def test_every_action_of_a_turn_is_a_moment_and_the_play_is_unchanged() -> None:
    answers = ["<answer>Left || Up</answer>", "what?", "<answer>Left</answer>"]
    recorded, recorder = played(answers, name="frozenlake", actions_per_turn=2)
    assert [len(turn.moments) for turn in recorded.turns] == [2, 0, 1]
    assert [turn.readable for turn in recorded.turns] == [True, False, True]
    assert [turn.answer for turn in recorded.turns] == answers
    assert recorded.turns[0].moments[0].view == recorded.start  # walked against the edge
    assert recorder.done and recorded.truncated and not recorded.success
    alone, _ = played(answers, name="frozenlake", actions_per_turn=2)
    assert alone == recorded


def test_prompts_of_all_turns_are_the_conversation_without_the_answers() -> None:
    recorded, recorder = played(["<answer>Left</answer>", "<answer>Up</answer>"], name="frozenlake")
    told = [message for turn in recorded.turns for message in turn.prompt]
    assert told == [m for m in recorder.messages if m["role"] != "assistant"][: len(told)]
    assert [message["role"] for message in recorded.turns[0].prompt] == ["system", "user"]


@pytest.mark.parametrize("name", ["frozenlake", "sokoban"])
def test_every_symbol_of_a_world_of_boards_has_a_tile_of_its_own(name: str) -> None:
    symbols = family(Env.model_validate({"name": name})).symbols  # type: ignore[attr-defined]
    assert set(tiles()[name]) == set(symbols)
    pixels = {symbol: board(name, symbol, 24).tobytes() for symbol in symbols}
    assert len(set(pixels.values())) == len(symbols)


def test_a_picture_has_a_tile_per_cell_and_large_boards_smaller_tiles() -> None:
    assert board("frozenlake", "P_\n_G").size == (88, 88)
    assert board("frozenlake", "\n".join(["_" * 40] * 20)).size == (640, 320)
    left, right = board("frozenlake", "PO").crop((0, 0, 44, 44)), board("frozenlake", "OP").crop((44, 0, 88, 44))
    assert left.tobytes() == right.tobytes()
    with pytest.raises(ValueError, match="no tile for"):
        board("frozenlake", "P?")


def test_frames_and_animation_are_files_beside_the_record(tmp_path: Path) -> None:
    recorded, _ = played(["<answer>Left || Up</answer>", "what?"], name="frozenlake", actions_per_turn=2)
    folder = files.save(tmp_path, recorded)
    assert folder == tmp_path / "pictures" / "val" / "step-000020" / "frozenlake-0"
    assert sorted(path.name for path in folder.glob("*.png")) == ["00.png", "01.png", "02.png", "03.png"]
    with Image.open(folder / "episode.gif") as animation:
        # equal frames are one longer frame in the file: start, 2 moves into the edge, no action
        assert animation.is_animated and animation.size[0] >= 176
    assert list(files.saved(tmp_path)) == [(folder, recorded)]
    again, _ = played(["what?"], name="frozenlake")
    files.save(tmp_path, again)
    assert sorted(path.name for path in folder.glob("*.png")) == ["00.png", "01.png"]


def test_a_text_environment_gets_pages_of_text(tmp_path: Path) -> None:
    recorded, _ = played(["<answer>dragon</answer>"], name="bandit", max_turns=1)
    assert not recorded.start and not drawn("bandit")
    folder = files.save(tmp_path, recorded)
    with Image.open(folder / "00.png") as picture:
        assert picture.width == 640 and len(picture.convert("RGB").getcolors(100_000) or []) > 2  # there is ink


def test_long_text_is_wrapped_and_says_that_its_start_is_missing() -> None:
    assert all(len(line) <= 78 for line in wrapped("word " * 200))
    short, long = pages([[("user", "hello")], [("user", "line\n" * (2 * LINES))]])
    assert short.size == long.size
    assert MISSING == "[...]"


def test_who_reads_while_an_episode_is_written_again_finds_whole_files_only(tmp_path: Path) -> None:
    long, _ = played(["what?"] * 10, name="frozenlake", max_turns=12)
    short, _ = played(["what?"], name="frozenlake")
    files.save(tmp_path, long)
    over, seen = Event(), set()

    def write() -> None:
        for number in range(20):
            files.save(tmp_path, short if number % 2 else long)
        over.set()

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not over.is_set() and not written.done():
            for folder, recorded in files.saved(tmp_path):
                seen.add(len(recorded.turns))
                with Image.open(folder / files.ANIMATION) as animation:
                    animation.load()
                with Image.open(folder / "00.png") as picture:
                    picture.load()
        written.result()
    assert seen == {len(long.turns), len(short.turns)}
    assert not list(tmp_path.rglob("*.tmp"))
