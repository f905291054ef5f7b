"""How `rlctl engine` becomes `vllm serve`: argv, environment, refusals, and the guard. No vLLM needed."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlctl.config import Config
from rlctl.engines.vllm.launch import Found, addressed, check_head_dim, command, probe
from rlctl.engines.vllm.settings import ENVIRONMENT, FaceSettings
from rlctl.errors import ConfigError

CPU = Found("/venv/bin/python", "0.32.0+cpu", rlctl=True)
GPU = Found("/venv/bin/python", "0.32.0", rlctl=True)


def configured(tmp_path: Path, **engine: Any) -> Config:
    urls = ["http://127.0.0.1:7001", "http://127.0.0.1:7002"]
    model = {"path": str(tmp_path), "max_context": 512, "dtype": "float32"}
    sections = {"run": {"dir": str(tmp_path / "run")}, "model": model, "engine": {"urls": urls} | engine}
    return Config.model_validate(sections)


def flag(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_argv_serves_the_model_at_the_address_of_this_index(tmp_path: Path) -> None:
    argv, _ = command(configured(tmp_path, max_running=9), 1, CPU, {})
    assert argv[:5] == ["/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", str(tmp_path)]
    assert (flag(argv, "--host"), flag(argv, "--port")) == ("127.0.0.1", "7002")
    assert (flag(argv, "--dtype"), flag(argv, "--max-model-len"), flag(argv, "--max-num-seqs")) == (
        "float32", "512", "9",
    )  # fmt: skip
    assert flag(argv, "--logprobs-mode") == "processed_logprobs"
    assert "--enable-prefix-caching" in argv and "--enforce-eager" in argv


def test_the_classes_that_vllm_is_told_to_load_exist(tmp_path: Path) -> None:
    from importlib import import_module

    argv, _ = command(configured(tmp_path), 0, CPU, {})
    for name in ("--middleware", "--worker-extension-cls"):
        module, _, attribute = flag(argv, name).rpartition(".")
        assert isinstance(getattr(import_module(module), attribute), type)


def test_cpu_settings_are_given_on_a_cpu_only_and_yield_to_the_users_own(tmp_path: Path) -> None:
    config = configured(tmp_path, threads=2)
    _, env = command(config, 0, CPU, {"VLLM_CPU_KVCACHE_SPACE": "7"})
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["OMP_NUM_THREADS"]) == ("7", "2")
    argv, env = command(config, 0, GPU, {})
    assert "--enforce-eager" not in argv
    assert not [name for name in env if name.startswith(("VLLM_CPU", "OMP"))]


def test_further_flags_are_passed_on_and_can_turn_ours_off(tmp_path: Path) -> None:
    own = {
        "enforce_eager": False,
        "tensor-parallel-size": 2,
        "compilation_config": {"level": 0},
        "allowed_origins": [1],
    }
    argv, _ = command(configured(tmp_path, vllm=own), 0, CPU, {})
    assert "--no-enforce-eager" in argv and "--enforce-eager" not in argv
    assert flag(argv, "--tensor-parallel-size") == "2"
    assert flag(argv, "--compilation-config") == '{"level": 0}'
    assert flag(argv, "--allowed-origins") == "1"


def test_flags_that_rlctl_sets_from_other_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="logprobs_mode, port"):
        command(configured(tmp_path, vllm={"port": 1, "logprobs-mode": "raw_logprobs"}), 0, CPU, {})


def test_the_hub_is_left_alone_only_for_a_local_model(tmp_path: Path) -> None:
    _, local = command(configured(tmp_path), 0, CPU, {})
    hub = Config.model_validate(configured(tmp_path).model_dump() | {"model": {"path": "some/model"}})
    _, remote = command(hub, 0, CPU, {})
    assert local["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in remote


def test_the_face_is_told_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, env = command(configured(tmp_path), 1, CPU, {})
    monkeypatch.setenv(ENVIRONMENT, env[ENVIRONMENT])
    expected = FaceSettings(str(tmp_path / "run"), "engine-1", "http://127.0.0.1:7002", str(tmp_path))
    assert FaceSettings.from_environment() == expected


def test_an_interpreter_without_rlctl_finds_our_sources(tmp_path: Path) -> None:
    bare = Found("/venv/bin/python", "0.32.0+cpu", rlctl=False)
    _, env = command(configured(tmp_path), 0, bare, {"PYTHONPATH": "/mine"})
    source, mine = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(source) / "rlctl" / "engines" / "vllm" / "face.py").is_file() and mine == "/mine"


def test_without_urls_a_free_port_of_the_host_is_served(tmp_path: Path) -> None:
    config = addressed(configured(tmp_path, urls=[]))
    argv, _ = command(config, 0, CPU, {})
    assert flag(argv, "--host") == "127.0.0.1" and int(flag(argv, "--port")) > 1023
    named = configured(tmp_path)
    assert addressed(named) is named


def interpreter(tmp_path: Path, answer: dict[str, Any]) -> str:
    """A stand-in for a Python that answers the probe with `answer`."""
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_missing_interpreter_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-python.*make vllm-cpu"):
        probe(configured(tmp_path, vllm_python=str(tmp_path / "no-python")))


def test_an_interpreter_without_vllm_is_an_error_that_names_the_cure(tmp_path: Path) -> None:
    python = interpreter(tmp_path, {"vllm": "", "rlctl": True})
    with pytest.raises(ConfigError, match=r"has no vLLM.*make vllm-cpu"):
        probe(configured(tmp_path, vllm_python=python))


def test_the_probe_reads_a_real_interpreter(tmp_path: Path) -> None:
    try:
        found = probe(configured(tmp_path, vllm_python=sys.executable))
    except ConfigError as error:
        assert "has no vLLM" in str(error)
    else:
        assert found.vllm


def test_too_old_a_vllm_is_refused(tmp_path: Path) -> None:
    python = interpreter(tmp_path, {"vllm": "0.11.2", "rlctl": True})
    with pytest.raises(ConfigError, match=r"0\.11\.2.*needs 0\.32 or newer"):
        probe(configured(tmp_path, vllm_python=python))
    newer = interpreter(tmp_path, {"vllm": "1.0.0", "rlctl": True})
    assert probe(configured(tmp_path, vllm_python=newer)) == Found(newer, "1.0.0", True)


def test_vllm_for_cpus_is_refused_where_a_gpu_is_asked_for(tmp_path: Path) -> None:
    python = interpreter(tmp_path, {"vllm": "0.32.0+cpu", "rlctl": True})
    config = configured(tmp_path, vllm_python=python).model_dump() | {"deploy": {"device": "cuda"}}
    with pytest.raises(ConfigError, match=r"deploy\.device"):
        probe(Config.model_validate(config))


@pytest.mark.parametrize(("heads", "fits"), [(2, True), (4, False)])
def test_heads_too_narrow_for_vllm_on_cpu_are_refused_before_the_start(tmp_path: Path, heads: int, fits: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "num_attention_heads": heads}))
    if fits:
        check_head_dim(str(tmp_path))
    else:
        with pytest.raises(ConfigError, match="width 16"):
            check_head_dim(str(tmp_path))


GUARDED = """
import os, sys
from rlctl.engines.vllm import guard
guard.start()
os.execv("/bin/sh", ["sh", "-c", "sleep 60 & sleep 60 & echo started; wait"])
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_the_guard_kills_what_the_killed_process_leaves_behind(signum: signal.Signals) -> None:
    argv = [sys.executable, "-c", GUARDED]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"started\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 3, "guard and two sleepers"
    process.send_signal(signum)
    process.wait(5)
    deadline = time.monotonic() + 5
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family):
        assert time.monotonic() < deadline, family
        time.sleep(0.02)
    process.stdout.close()
