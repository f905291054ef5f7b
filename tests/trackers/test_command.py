"""`rlctl track RUN_DIR`, as a process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import rlctl
from tests.e2e.running import wait_for
from tests.trackers.anybodys import got
from tests.trackers.runs import make, write

LINES = "tests.trackers.anybodys:Lines"
MOODY = "tests.trackers.anybodys:Moody"
ROOT = Path(__file__).parents[2]


def test_a_run_of_the_past_is_sent_to_whom_one_names(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    done = rlctl("track", str(run_dir), "--to", "tensorboard", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"tracker": "tensorboard", "rows": 6, "pictures": 2, "skipped": 0, "failures": 0}
    assert list((run_dir / "trackers" / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_it_follows_a_run_until_sigterm_and_sends_the_last_rows(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", f'monitor.trackers=["{LINES}", "{MOODY}"]')
    (run_dir / "mood").write_text("open")
    process = subprocess.Popen([sys.executable, "-m", "rlctl", "track", str(run_dir), "--follow"], cwd=ROOT)
    try:
        folder = run_dir / "trackers" / LINES.replace(":", ".")
        wait_for(lambda: len(got(folder)) == 8, 60, "everything so far, whatever the other tracker does")
        component = json.loads((run_dir / "components" / "track.json").read_text())
        assert (component["pid"], component["state"]) == (process.pid, "ready")
        twice = rlctl("track", str(run_dir), cwd=ROOT)
        assert twice.returncode == 2 and "by another process already" in twice.stderr
        write(run_dir, "train", [{"step": 4, "loss": 1.0}])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert got(folder)[-1]["step"] == 4
    noted = json.loads((run_dir / "trackers" / (MOODY.replace(":", ".") + ".json")).read_text())
    assert noted["waiting"] == 9 and noted["failures"] > 0
    (run_dir / "mood").unlink()
    later = rlctl("track", str(run_dir), "--to", MOODY, cwd=ROOT)
    assert later.returncode == 0 and len(got(run_dir / "trackers" / MOODY.replace(":", "."))) == 9


def test_what_could_not_be_sent_is_an_error_of_the_command(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    (run_dir / "mood").write_text("open")
    done = rlctl("track", str(run_dir), "--to", MOODY, cwd=ROOT)
    assert done.returncode == 1
    assert f"error: {MOODY}: 8 not sent, ConnectionError: no one is there" in done.stderr


@pytest.mark.slow
def test_mistakes_are_told_with_their_cure(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    nobody = rlctl("track", str(run_dir), cwd=tmp_path)
    assert nobody.returncode == 2 and "names no tracker: give --to tensorboard" in nobody.stderr
    absent = rlctl("track", str(run_dir), "--to", "no.such:Thing", cwd=tmp_path)
    assert absent.returncode == 2 and "the tracker 'no.such:Thing' cannot be imported" in absent.stderr
    elsewhere = rlctl("track", str(tmp_path), "--to", "tensorboard", cwd=tmp_path)
    assert elsewhere.returncode == 2 and "has no resolved.toml" in elsewhere.stderr
