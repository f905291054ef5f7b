"""Agents of other kinds in a real run: a class of somebody's, tools, a context window."""

import json
from pathlib import Path

import pytest

from tests.e2e.running import SMALL, finish, rows, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MINE = """
class Agent:
    def __init__(self, env):
        self.turns = env.max_turns

    async def play(self, client, call):
        while not call.episode.done:
            reply = await client.chat(call.base_url, call.episode.messages, call.sampling)
            call.episode.feed(reply.text)
"""


@pytest.mark.parametrize(
    "setting", ['env.0.agent="mine:Agent"', 'env.0.tools=["calculator", "python"]', 'env.0.context="last"']
)
def test_a_run_goes_through_with_it_and_leaves_pictures_and_a_page(
    tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2] / 'src'}")
    run_dir = tmp_path / "run"
    code, _, err = finish(start(run_dir, settings=(*SMALL, setting, "env.0.context_turns=2")))
    assert code == 0, err[-3000:]
    summary = json.loads((run_dir / "summary.json").read_text())
    samples = summary["samples"]
    assert summary["steps"] == 3 and samples["failed"] == 0
    forks = set(rows(run_dir, "gateway")[-1]["forks"])
    assert forks == ({"cut_history"} if "context" in setting else set())
    # an untrained model rarely reaches a goal: most groups have no signal, but the trainer has seen them all
    assert samples["trained"] + samples["zero_variance"] >= 3 * 4 * 4
    episodes = [json.loads(path.read_text()) for path in (run_dir / "pictures").glob("*/*/*/episode.json")]
    assert {episode["series"] for episode in episodes} == {"val", "train"}
    assert all(episode["turns"] and not episode["error"] for episode in episodes)
    assert 'class="episode"' in (run_dir / "report.html").read_text()
