"""A killed run goes on where it was, and its files are those of a run that was never killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlctl.config.serving import Env
from rlctl.errors import ConfigError, RlctlError
from rlctl.sftgen import workers
from rlctl.sftgen.blocks import Blocks
from rlctl.sftgen.main import Order, generate
from rlctl.sftgen.progress import MANIFEST, Folder
from rlctl.sftgen.rows import Block, Recipe, Record
from rlctl.sftgen.sink import Sink
from rlctl.sftgen.workers import played

LAKE = Env(name="frozenlake")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("train.jsonl", "test.jsonl")}


@pytest.mark.parametrize("count", ["1", "2"])
def test_sigkill_in_the_middle_leaves_nothing_wrong(tmp_path, count):
    order = Order(Env(name="sokoban", rows=8, cols=8, boxes=2, max_actions=40, max_turns=40), 600, 30, 0)
    command = [sys.executable, "-m", "rlctl", "sft-gen", "sokoban", "--out", str(tmp_path / "killed")]
    command += ["--train-size", "600", "--test-size", "30", "--seed", "0", "--workers", count]
    for key, value in (("rows", 8), ("cols", 8), ("boxes", 2), ("max_actions", 40), ("max_turns", 40)):
        command += ["-s", f"env.{key}={value}"]
    kills = 0
    for wanted in (1, 500_000):
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        partial = tmp_path / "killed" / "train.partial"
        while started.poll() is None and not (partial.exists() and partial.stat().st_size >= wanted):
            time.sleep(0.01)
        if started.poll() is None:
            started.send_signal(signal.SIGKILL)
            kills += 1
        started.communicate()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert kills == 2
    whole = generate(order, tmp_path / "whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    resumed = json.loads(done.stdout)
    assert {k: v for k, v in resumed.items() if k not in ("workers", "seconds")} == {
        k: v for k, v in whole.items() if k not in ("workers", "seconds")
    }
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == [
        MANIFEST,
        "summary.json",
        "test.jsonl",
        "train.jsonl",
    ]


def stopped(order: Order, place: Path, after: int) -> None:
    """Generate until `after` instances are written, then stop as if killed: without saving."""

    class Stop(Exception):
        pass

    def progress(done: int, _: int) -> None:
        if done >= after:
            raise Stop

    with pytest.raises(Stop):
        generate(order, place, progress=progress)


@pytest.mark.parametrize("save", [0.0, 1e9])
def test_what_stands_beyond_the_manifest_is_made_again(tmp_path, monkeypatch, save):
    monkeypatch.setattr("rlctl.sftgen.progress.SAVE_EVERY_S", save)
    order = Order(LAKE, 300, 20, 7, episodes=2)
    for after in (60, 150, 200):
        stopped(order, tmp_path / "cut", after)
    with (tmp_path / "cut" / "train.partial").open("ab") as file:
        file.write(b'{"half a li')
    generate(order, tmp_path / "cut")
    generate(order, tmp_path / "whole")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize("curriculum", ["sorted", "none"])
def test_a_run_killed_while_it_gives_the_files_their_names_goes_on(tmp_path, monkeypatch, curriculum):
    order = Order(LAKE, 50, 5, 0, curriculum=curriculum)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Folder, "finish", die)
        generate(order, tmp_path / "cut")
    assert (tmp_path / "cut" / "train.partial").exists()
    generate(order, tmp_path / "cut")
    generate(order, tmp_path / "whole")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_finished_file_stays_whole_while_a_deleted_one_is_made_again(tmp_path):
    """Also where the run was killed before it removed the partial file, of which the finished one is another name."""
    order = Order(LAKE, 50, 5, 0)
    generate(order, tmp_path)
    whole = contents(tmp_path)
    (tmp_path / "train.partial").hardlink_to(tmp_path / "train.jsonl")
    (tmp_path / "test.jsonl").unlink()
    seen = []
    generate(order, tmp_path, progress=lambda *_: seen.append((tmp_path / "train.jsonl").read_bytes()))
    assert set(seen) == {whole["train.jsonl"]} and contents(tmp_path) == whole


def test_without_links_the_files_are_the_same(tmp_path, monkeypatch):
    order = Order(LAKE, 50, 5, 0)
    generate(order, tmp_path / "links")

    def refused(path: Path, target: Path) -> None:
        raise PermissionError(f"{path}: no links here")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    generate(order, tmp_path / "copies")
    assert contents(tmp_path / "copies") == contents(tmp_path / "links")


@pytest.mark.parametrize("finished", [True, False])
def test_other_arguments_are_refused_and_named(tmp_path, finished):
    order = Order(LAKE, 60, 5, 0)
    if finished:
        generate(order, tmp_path)
    else:
        stopped(order, tmp_path, 20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="other arguments: train_size was 60, not 70; take another --out"):
        generate(Order(LAKE, 70, 5, 0), tmp_path)
    with pytest.raises(ConfigError, match=r"seed was 0, not 1, env\.size was None, not 5"):
        generate(Order(Env(name="frozenlake", size=5), 60, 5, 1), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert generate(Order(LAKE, 70, 5, 0), tmp_path, overwrite=True)["train"] == 70


def test_the_same_arguments_again_change_nothing(tmp_path):
    first = generate(Order(LAKE, 30, 3, 0), tmp_path)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert generate(Order(LAKE, 30, 3, 0), tmp_path, workers=2) == first
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    (tmp_path / "train.jsonl").unlink()
    assert generate(Order(LAKE, 30, 3, 0), tmp_path)["train"] == 30


def test_files_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "train.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds train.jsonl, no manifest.json"):
        generate(Order(LAKE, 3, 0, 0), tmp_path)
    assert (tmp_path / "train.jsonl").read_text() == "mine"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        generate(Order(LAKE, 3, 0, 0), tmp_path)


def test_two_processes_do_not_write_into_one_folder(tmp_path):
    order = Order(LAKE, 3, 0, 0)
    with Folder(tmp_path, order.arguments(), False), pytest.raises(ConfigError, match="another process"):
        generate(order, tmp_path)
    assert generate(order, tmp_path)["train"] == 3


def test_a_worker_that_dies_is_an_error_and_the_run_can_go_on(tmp_path, monkeypatch):
    order, first, play = Order(LAKE, 400, 10, 0), os.getpid(), workers.Player.play

    def die(player: workers.Player, block: Block) -> list[Record]:
        return play(player, block) if os.getpid() == first else os._exit(9)

    with monkeypatch.context() as patched:
        patched.setattr(workers.Player, "play", die)
        patched.setattr(workers.threading, "active_count", lambda: 1)  # forked, so that it inherits this
        with pytest.raises(RlctlError, match="a worker process ended with exit code 9"):
            generate(order, tmp_path, workers=2)
    assert generate(order, tmp_path)["train"] == 400


def test_what_goes_wrong_in_a_worker_is_told(monkeypatch):
    first, play = os.getpid(), workers.Player.play

    def fail(player: workers.Player, block: Block) -> list[Record]:
        if os.getpid() == first:
            return play(player, block)
        raise ValueError("no such board")

    monkeypatch.setattr(workers.Player, "play", fail)
    monkeypatch.setattr(workers.threading, "active_count", lambda: 1)
    sink = Sink({"sft": 5, "sft_test": 0})
    with pytest.raises(ValueError, match="no such board"):
        list(played(Recipe(LAKE, 10, False, 1), Blocks(0, None, sink, 2), 2))


def test_spawned_workers_give_the_same_records(monkeypatch):
    monkeypatch.setattr(workers.threading, "active_count", lambda: 2)
    recipe = Recipe(LAKE, 10, False, 1)
    found = [
        [record for records in played(recipe, Blocks(0, 500, Sink({"sft": 500}), count), count) for record in records]
        for count in (1, 2)
    ]
    assert len(found[0]) == 500
    assert [record.key for record in found[0]] == [record.key for record in found[1]]


def test_workers_end_with_the_process_that_started_them(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from rlctl.config.serving import Env;"
        "from rlctl.sftgen.main import Order, generate; import multiprocessing\n"
        "def tell(done, wanted):\n"
        "    print(*[child.pid for child in multiprocessing.active_children()], flush=True); os.kill(os.getpid(), 9)\n"
        "generate(Order(Env(name='frozenlake'), 700, 0, 0), Path(sys.argv[1]), 3, progress=tell)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) == 2, done.stderr
    until = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
