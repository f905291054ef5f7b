"""What a mistake looks like: one clear message, file:line, the nearest valid key, exit code 2, nothing started."""

import socket
from pathlib import Path

import pytest

from tests.cli.running import rlctl

PRESET = """\
extends = "frozenlake-cpu"

[run]
name = "mine"
"""


def refused(tmp_path: Path, text: str, *arguments: str) -> list[str]:
    """The error lines of `rlctl up mine.toml`."""
    (tmp_path / "mine.toml").write_text(PRESET + text)
    done = rlctl("up", "mine.toml", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()  # nothing was begun
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


def test_an_unknown_key(tmp_path: Path) -> None:
    assert refused(tmp_path, "stesp = 3\n") == ["mine.toml:5: unknown key run.stesp; did you mean 'steps'?"]


def test_an_unknown_section(tmp_path: Path) -> None:
    assert refused(tmp_path, "[trian]\nthreads = 1\n") == ["mine.toml:5: unknown key trian; did you mean 'train'?"]


def test_an_unknown_key_of_an_environment(tmp_path: Path) -> None:
    lines = refused(tmp_path, '[[env]]\nname = "frozenlake"\nsizee = 5\n')
    assert lines == ["mine.toml:7: unknown key env.0.sizee; did you mean 'size'?"]


def test_a_wrong_type_and_a_value_out_of_range_both_at_once(tmp_path: Path) -> None:
    lines = refused(tmp_path, 'steps = "many"\n\n[rollout]\ntop_p = 1.5\n')
    assert len(lines) == 2
    assert lines[0].startswith("mine.toml:5: run.steps: ") and lines[0].endswith("not 'many'")
    assert lines[1].startswith("mine.toml:8: rollout.top_p: ") and lines[1].endswith("not 1.5")


def test_a_contradiction_names_both_places(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, '[model]\npath = "some/model"\n')
    assert "model.path (mine.toml:6)" in line
    assert "model.init (" in line and "frozenlake-cpu.toml:10)" in line


def test_invalid_toml(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, "steps = \n")
    assert line.startswith("mine.toml:5: not valid TOML")


def test_an_override_is_named_as_it_was_typed(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, "", "-s", "train.optim.lrr=1e-3")
    assert line == "-s train.optim.lrr=1e-3: unknown key train.optim.lrr; did you mean 'lr'?"


def test_a_missing_file_or_preset(tmp_path: Path) -> None:
    done = rlctl("up", "frozenlake", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr == "error: frozenlake: no such file, and no preset of that name; did you mean 'frozenlake-cpu'?\n"
    )


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = refused(tmp_path, f"[gateway]\nport = {port}\n")
    assert line == f"mine.toml:6: gateway.port: {port} is in use on 127.0.0.1; 0 picks a free one"


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "~/no-such-model"])
def test_a_model_folder_that_is_not_there(tmp_path: Path, path: str) -> None:
    (line,) = refused(tmp_path, f'[model]\ninit = ""\npath = "{path}"\n')
    assert line == f"mine.toml:7: model.path: {path} is not there"


def test_a_model_id_that_cannot_be_had(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, '[model]\ninit = ""\npath = "nobody/nothing"\n')
    assert line.startswith("mine.toml:7: model.path: there is no folder nobody/nothing, and as a Hugging Face id: ")


def test_a_run_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    (line,) = refused(tmp_path, 'dir = "full"\n')
    assert line.startswith("mine.toml:5: run.dir: ") and line.endswith("goes on with that run")


def test_a_component_that_does_not_exist(tmp_path: Path) -> None:
    (line,) = refused(tmp_path, "", "--only", "pol")
    assert line == "--only pol: no such process; did you mean 'pool'?"


def test_usage_errors_are_exit_2_too(tmp_path: Path) -> None:
    assert rlctl("up", "--no-such-flag", cwd=tmp_path).returncode == 2
    assert rlctl("frobnicate", cwd=tmp_path).returncode == 2
    assert rlctl("up", cwd=tmp_path).returncode == 2


def test_a_run_directory_is_expected(tmp_path: Path) -> None:
    for command in ("status", "logs", "stop", "report"):
        done = rlctl(command, "nowhere", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, "error: nowhere is not there\n")
    done = rlctl("up", "--resume", "frozenlake-cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no run of 'frozenlake-cpu'" in done.stderr
