"""Anybody's agent: a program, in any language, started once per episode.

    rollout -- environment variables, JSON on stdin --> program -- OpenAI or Anthropic calls --> gateway
            <-- exit code, last JSON line of stdout ---

The program finds the model at OPENAI_BASE_URL (or ANTHROPIC_BASE_URL); whatever it calls there is recorded and trained.
Its task is the JSON object on stdin, also in RLCTL_TASK: {"env", "seed", "stream", "messages", "sampling", ...}.
It may end with a line {"reward": float, "success": bool, "answer": str, "extra": {str: float}} on stdout, each key
optional: an answer is judged by the environment; reward and success, where given, count instead of its judgement.
A program that gives none of them is scored by the [reward] functions alone. `reward` without `success`: a success is a
reward above 0. Exit codes other than 0, a time-out and a program that cannot be started make a failed episode.
"""

import asyncio
import json
import os
import signal

import msgspec

from rlctl.agents.call import Call, report
from rlctl.agents.client import Client
from rlctl.wire.samples import Facts

KEPT = 65536
"""Last bytes of stdout and of stderr that are looked at."""
POLL_S = 0.02
GRACE_S = 1.0
"""From SIGTERM to SIGKILL."""


class Result(msgspec.Struct, frozen=True):
    """What a program says in the end."""

    reward: float | None = None
    success: bool | None = None
    answer: str | None = None
    extra: dict[str, float] = {}


class Program:
    """Plays with one program."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    async def play(self, client: Client, call: Call) -> Facts:
        return await play(client, call, self._command)

    async def close(self) -> None:
        """Every program ended with its episode."""


async def play(client: Client, call: Call, command: list[str]) -> Facts:
    """Run `command` to its end, judge, and report to the gateway; a failure is data (Facts.error)."""
    try:
        code, out, err = await _run(call, command)
    except TimeoutError:
        facts = Facts(error=f"agent_timeout: not over after {call.timeout_s:g} s")
    except OSError as error:
        facts = Facts(error=f"agent_start: {command[0]}: {error.strerror}")
    else:
        facts = _judged(call, out) if code == 0 else Facts(error=f"agent_exit_{code}: {_last_line(err)}")
    return await report(client, call, facts)


async def _run(call: Call, command: list[str]) -> tuple[int, bytes, bytes]:
    """Exit code and the ends of stdout and stderr; TimeoutError. Nothing of its process group is left."""
    task = json.dumps({**call.task, "messages": call.episode.messages, "sampling": dict(call.sampling)})
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(call.base_url, task),
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    tails = [asyncio.create_task(_tail(stream)) for stream in (process.stdout, process.stderr)]
    try:
        async with asyncio.timeout(call.timeout_s):
            process.stdin.write(task.encode())
            process.stdin.close()
            # process.wait() would also wait for the pipes, which a child of the program may hold
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
    except BaseException:
        for tail in tails:
            tail.cancel()
        raise
    finally:
        await _end_group(process)
    out, err = await asyncio.wait_for(
        asyncio.gather(*tails), call.timeout_s
    )  # a daemon of the program's may still hold the pipes
    return process.returncode, out, err


def environment(base_url: str, task: str) -> dict[str, str]:
    """This process's environment without its own settings, with the addresses and the task of the episode."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLCTL__")}
    return kept | {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none-needed",
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none-needed",
        "RLCTL_TASK": task,
    }


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(KEPT):
        kept = (kept + chunk)[-KEPT:]
    return kept


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL, to whatever lives in the program's process group."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        for _ in range(int(GRACE_S / 0.05)):
            if process.returncode is not None:
                break
            await asyncio.sleep(0.05)
    _signal(process.pid, signal.SIGKILL)


def _signal(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return


def _judged(call: Call, out: bytes) -> Facts:
    """Facts of a program that ended well."""
    try:
        result = read(out)
    except ValueError as error:
        return Facts(error=f"agent_result: {error}")
    episode = call.episode
    if result.answer is not None:
        if not episode.messages and result.reward is None and result.success is None:
            return Facts(error="agent_result: this environment judges no answers; report reward or success")
        episode.feed(result.answer)
    facts = episode.facts()
    success = facts.success if result.success is None else result.success
    if result.reward is not None:
        success = result.reward > 0 if result.success is None else result.success
    return msgspec.structs.replace(
        facts,
        env_reward=facts.env_reward if result.reward is None else result.reward,
        success=success,
        turn_rewards=facts.turn_rewards if result.reward is None else [],
        extra={**facts.extra, **result.extra},
    )


def read(out: bytes) -> Result:
    """The last line that is a JSON object; without one, an empty result. ValueError for one of wrong types."""
    for line in reversed(out.decode(errors="replace").splitlines()):
        if not line.strip().startswith("{"):
            continue
        try:
            return msgspec.json.decode(line, type=Result)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}: {line[:200]}") from None
        except msgspec.DecodeError:
            continue
    return Result()


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "(nothing on stderr)"
