"""Programs that play episodes: what they are told, how their end is judged, that nothing of them is left."""

import asyncio
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from rlctl.agents import command
from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config.serving import Env
from rlctl.envs import family
from rlctl.wire.samples import Facts


class Gateway:
    """Takes the ends of episodes on a real socket."""

    def __init__(self) -> None:
        self.ends: list[dict] = []

    async def start(self) -> "Gateway":
        application = web.Application()
        application.router.add_post("/t/p/v1/complete_trajectory", self._complete)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/t/p/v1"
        return self

    async def _complete(self, request: web.Request) -> web.Response:
        self.ends.append(await request.json())
        return web.json_response({"status": "ok"})

    async def stop(self) -> None:
        await self._runner.cleanup()


@pytest.fixture
async def gateway():
    started = await Gateway().start()
    yield started
    await started.stop()


async def run(gateway: Gateway, script: str, env: Env | None = None, timeout_s: float = 20) -> Facts:
    env = env or Env(name="command", command=["x"])
    made = family(env)
    instance = next(made.distinct("train", 0))
    call = Call(gateway.url, made.episode(instance, 0), {"temperature": 0.5}, timeout_s, {"seed": instance.seed})
    async with Client(timeout_s=5, retries=0) as client:
        return await command.play(client, call, [sys.executable, "-c", script])


TELL = """
import json, os, sys
task = json.load(sys.stdin)
assert task == json.loads(os.environ["RLCTL_TASK"])
assert os.environ["OPENAI_BASE_URL"] == os.environ["ANTHROPIC_BASE_URL"] + "/v1"
assert not [name for name in os.environ if name.startswith("RLCTL__")]
print("working on", task["seed"], task["sampling"])
print(json.dumps({"reward": 0.25, "extra": {"calls": 3}}))
"""


async def test_a_program_is_told_its_task_and_its_reward_counts(gateway, monkeypatch):
    monkeypatch.setenv("RLCTL__RUN__SEED", "5")
    facts = await run(gateway, TELL)
    assert (facts.error, facts.env_reward, facts.success, facts.extra["calls"]) == ("", 0.25, True, 3.0)
    (end,) = gateway.ends
    assert end["status"] == "complete" and end["facts"]["env_reward"] == 0.25


@pytest.mark.parametrize(
    ("said", "reward", "success"),
    [
        ('{"answer": "so it is #### 4"}', 1.0, True),
        ('{"answer": "5"}', 0.0, False),
        ('{"answer": "5", "reward": 0.5, "success": false}', 0.5, False),
        ("nothing to report", 0.0, False),
        ('{"reward": -1}', -1.0, False),
        ('{"success": true}', 0.0, True),
    ],
)
async def test_an_answer_is_judged_by_the_environment(gateway, tmp_path: Path, said, reward, success):
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "test.jsonl").write_text("")
    (tmp_path / "train.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    env = Env(name="questions", path=str(tmp_path), val_split="test", max_turns=1)
    facts = await run(gateway, f"print({said!r})", env)
    assert (facts.error, facts.env_reward, facts.success) == ("", reward, success)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("import sys; sys.exit('no luck')", "agent_exit_1: no luck"),
        ("import os; os.kill(os.getpid(), 9)", "agent_exit_-9"),
        ('print(\'{"reward": "much"}\')', "agent_result: Expected `float | null`"),
        ('print(\'{"answer": "4"}\')', "agent_result: this environment judges no answers"),
    ],
)
async def test_a_failure_is_data(gateway, script, error):
    facts = await run(gateway, script)
    assert facts.error.startswith(error)
    assert gateway.ends[0]["status"] == "failed"


async def test_a_program_that_is_not_there_is_data(gateway):
    call = Call(gateway.url, family(Env(name="command", command=["x"])).episode(None, 0), {}, 5.0)
    async with Client(timeout_s=5, retries=0) as client:
        facts = await command.play(client, call, ["/no/such/program"])
    assert facts.error == "agent_start: /no/such/program: No such file or directory"


CHILDREN = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
open({path!r}, "w").write(str(child.pid))
{then}
"""


@pytest.mark.parametrize(("then", "error"), [("time.sleep(60)", "agent_timeout"), ("print('{\"reward\": 1}')", "")])
async def test_no_process_of_a_program_is_left(gateway, tmp_path, then, error):
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    facts = await run(gateway, CHILDREN.format(path=str(pid_file), then=then), timeout_s=3)
    assert time.monotonic() - began < 8
    assert facts.error.startswith(error) and bool(facts.error) == bool(error)
    pid = int(pid_file.read_text())
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the program's child lives on")


async def test_endless_output_is_read_and_only_its_end_is_kept(gateway):
    facts = await run(gateway, "import sys\nsys.stdout.write('x' * 5_000_000)\nprint('\\n{\"reward\": 2}')")
    assert facts.env_reward == 2.0


def test_the_last_json_object_counts():
    assert command.read(b'{"reward": 1}\n{"reward": 2}\n[3]\nbye {"reward": 4}\n').reward == 2.0
    assert command.read(b"") == command.Result()
    with pytest.raises(ValueError, match="out of range"):
        command.read(b'{"reward": 1e999}')
