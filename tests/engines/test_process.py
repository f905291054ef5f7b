"""The engine as a process: its address, its end, its complaints."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from rlctl.config import Config, load
from rlctl.config.learning import Tiny
from rlctl.engines.embedded.server import listen
from rlctl.engines.launch import main, resolve
from rlctl.errors import ConfigError
from rlctl.models.tiny import build_tiny


def config(*overrides: str) -> Config:
    return load([], ["model.init='tiny'", "rollout.max_tokens=8", *overrides], {}).config


def test_the_process_announces_itself_serves_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    build_tiny(tmp_path / "model", Tiny(layers=1, hidden_size=32, heads=1, mlp=48), 64, seed=1)
    settings = ["run.dir=" + json.dumps(str(tmp_path)), "model.init='tiny'", "model.max_context=64"]
    code = (
        "import sys; from rlctl.config import load; from rlctl.engines.launch import main;"
        "main(load([], sys.argv[1:]).config, 0)"
    )
    settings += ["engine.kind='embedded'", "rollout.max_tokens=8"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code, *settings], env=environment)
    try:
        card = tmp_path / "components" / "engine-0.json"
        while not card.exists():
            assert process.poll() is None
            time.sleep(0.05)
        url = json.loads(card.read_text())["url"]
        body = json.dumps({"prompt": [1, 2], "max_tokens": 3, "ignore_eos": True}).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", body) as reply:
            assert reply.headers["X-Policy-Versions"] == "0:3"
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - start < 2
    finally:
        process.kill()
    rows = [json.loads(line) for line in (tmp_path / "metrics" / "engine-0.jsonl").read_text().splitlines()]
    assert rows[-1]["generated_tokens"] == 3


def test_a_model_that_is_not_built_yet_is_a_clear_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rlctl up"):
        main(config(f"run.dir='{tmp_path}'", "engine.kind='embedded'"))


def test_a_port_in_use_is_a_config_error_that_names_the_key() -> None:
    taken = listen(config(), 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"engine\.urls\[0\].*{port}"):
        listen(config(f"engine.urls=['http://127.0.0.1:{port}']"), 0)
    taken.close()


def test_an_index_without_an_address_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="2 addresses"):
        main(config("engine.urls=['http://127.0.0.1:1', 'http://127.0.0.1:2']"), 2)


def test_auto_is_the_embedded_engine_where_there_is_no_gpu() -> None:
    assert resolve(config("engine.kind='auto'", "deploy.device='cpu'")) == "embedded"
    assert resolve(config("engine.kind='vllm'")) == "vllm"
