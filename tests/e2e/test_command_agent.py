"""An agent of somebody else's, with tools, trained by `rlctl up` with a preset that only names its command."""

import json
import sys
from pathlib import Path

import pytest

from rlctl.config.learning import Tiny
from tests.e2e.running import finish, left_running, rows, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AGENT = """
import json, os, sys
from openai import OpenAI

task = json.loads(os.environ["RLCTL_TASK"])
tools = [{"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}]
messages = [{"role": "user", "content": f"Add up, task {task['seed']}."}]
client, calls = OpenAI(), 0
for turn in range(2):
    reply = client.chat.completions.create(model="policy", messages=messages, tools=tools, max_tokens=8)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or []:
        calls += 1
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "4"})
    if not message.tool_calls:
        messages.append({"role": "user", "content": "Go on."})
text = "".join(str(message.get("content") or "") for message in messages if message["role"] == "assistant")
print(json.dumps({"reward": len(set(text)) / 10, "success": "a" in text, "extra": {"tool_calls": calls}}))
"""

PRESET = """
[run]
steps = 2
[model]
path = {model!r}
max_context = 1024
[[env]]
name = "command"
command = [{python!r}, {agent!r}]
instances = 20
[[eval]]
episodes = 2
[rollout]
group_size = 4
concurrency = 4
max_tokens = 8
[train]
groups_per_step = 2
"""


def test_an_outside_agent_with_tools_is_trained(tmp_path: Path) -> None:
    from rlctl.models.tiny import build_tiny

    build_tiny(tmp_path / "model", Tiny(hidden_size=32, layers=1, heads=1, mlp=64), 1024, seed=1)
    (tmp_path / "agent.py").write_text(AGENT)
    preset = tmp_path / "agent.toml"
    preset.write_text(
        PRESET.format(model=str(tmp_path / "model"), python=sys.executable, agent=str(tmp_path / "agent.py"))
    )
    run_dir = tmp_path / "run"
    code, out, err = finish(start(run_dir, "--json", preset=str(preset), settings=()))
    assert code == 0, err[-3000:]
    summary = json.loads(out)
    assert summary["steps"] == 2
    assert summary["samples"].get("failed", 0) == 0
    assert summary["samples"]["trained"] > 0
    assert summary["samples"]["created"] == sum(n for name, n in summary["samples"].items() if name != "created")
    first = summary["eval"][0]
    assert first.get("floor") is None and first["episodes"] == 2
    assert len(rows(run_dir, "train")) == 2
    assert left_running(run_dir) == []
