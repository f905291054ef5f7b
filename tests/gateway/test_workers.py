"""Several worker processes behind one port: real processes, found over HTTP only."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
from conftest import Client, Stack
from fakes import FakeEngine, FakePool
from hypothesis import given
from hypothesis import strategies as st
from model import build
from test_fidelity import check_fidelity, talk

from rlctl.gateway.door.guard import LONGEST, named
from rlctl.gateway.report import summed
from rlctl.gateway.workers.worker import Worker
from rlctl.telemetry.metrics import read

HELLO = [{"role": "user", "content": "hello"}]


class Running(Stack):
    """A stack whose gateway is a process of its own, with children."""

    process: subprocess.Popen[bytes]

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


def uid_of(worker: int, count: int = 2, name: str = "t") -> str:
    """Of a trajectory that this worker owns."""
    return next(uid for uid in (f"{name}{i}" for i in range(100)) if Worker(count=count).owner(uid) == worker)


@asynccontextmanager
async def workers(path: Path, count: int = 2, *more: str) -> AsyncIterator[Running]:
    engines = [await FakeEngine(seed).start() for seed in range(2)]
    pool = await FakePool().start()
    preset = path / "gateway.toml"
    preset.write_text(
        f'[run]\ndir = "{path}"\n[model]\npath = "{build(path / "model")}"\nmax_context = 4096\n'
        f'[engine]\nurls = {json.dumps([one.url for one in engines])}\n[pool]\nurl = "{pool.url}"\n'
        f"[rollout]\nmax_tokens = 64\n[gateway]\nworkers = {count}\n" + "\n".join(more)
    )
    command = [sys.executable, "-m", "rlctl", "gateway", "--config", str(preset)]
    with (path / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)  # noqa: ASYNC220  # returns at once
    announced = path / "components" / "gateway.json"
    try:
        for _ in range(600):
            if announced.exists():
                break
            assert process.poll() is None, (path / "gateway.log").read_text()
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
            client = Client(json.loads(announced.read_text())["url"], http)
            await until_ready(client)
            stack = Running(engines, pool, client, path)
            stack.process = process
            yield stack
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 10)
        for one in engines:
            await one.stop()
        await pool.stop()


async def until_ready(client: Client) -> None:
    for _ in range(200):
        with contextlib.suppress(aiohttp.ClientError):
            if (await client.get("/ready"))[0] == 200:
                return
        await asyncio.sleep(0.05)
    raise AssertionError((await client.get("/ready"))[1])


def value(metrics: str, name: str) -> float:
    return float(next(line for line in metrics.splitlines() if line.startswith(f"rlctl_gateway_{name} ")).split()[1])


# ---------------------------------------------------------------- the rule and the sums


@given(uid=st.text(min_size=1), count=st.integers(1, 8))
def test_each_trajectory_has_exactly_one_owner_and_a_new_one_is_its_makers(uid: str, count: int) -> None:
    assert [Worker(i, count).owns(uid) for i in range(count)].count(True) == 1
    assert all(Worker(i, count).owns(Worker(i, count).new_uid()) for i in range(count))


@given(st.binary(max_size=64))
def test_the_trajectory_is_known_as_soon_as_its_segment_is_whole(rest: bytes) -> None:
    request = b"POST /t%3A1/p1/v1/messages HTTP/1.1\r\nhost: x\r\n\r\n" + rest
    known = [named(request[:end]) for end in range(1, len(request) + 1)]
    assert set(known[:11]) == {None} and set(known[11:]) == {"t:1"}


def test_a_request_that_names_no_trajectory_stays() -> None:
    for request in (
        b"GET /ready HTTP/1.1\r\n",
        b"GET / HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"\x16\x03\x01" + b"\0" * 300,
    ):
        assert named(request) == ""
    assert named(b"GET /" + b"a" * LONGEST) == ""


def test_numbers_of_workers_are_added_by_name() -> None:
    rows = [{"steps": 2, "forks": {"choice": 1}}, {"steps": 3, "forks": {"choice": 1, "restart": 4}, "x": 0.5}]
    assert summed(rows) == {"steps": 5, "forks": {"choice": 2, "restart": 4}, "x": 0.5}
    assert rows[0] == {"steps": 2, "forks": {"choice": 1}}, "untouched"


# ---------------------------------------------------------------- real processes


async def test_conversations_over_shared_connections_reach_the_pool_exactly_and_the_numbers_are_sums(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path) as stack:
        assert len(stack.workers) == 2
        await asyncio.gather(*(talk(stack, f"t{seed}", seed) for seed in range(12)))
        steps = check_fidelity(stack.engines, stack.pool)
        assert {Worker(count=2).owner(uid) for uid in stack.pool.steps} == {0, 1}, "both had work"
        for _ in range(4):  # whichever worker answers
            metrics = (await stack.client.get("/metrics"))[1]
            assert (value(metrics, "workers"), value(metrics, "steps_total")) == (2, steps)
        stack.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert await asyncio.to_thread(stack.process.wait, 5) == 0
        assert time.monotonic() - started < 2.5
    last = list(read(tmp_path / "metrics" / "gateway.jsonl"))[-1]
    assert (last["steps"], last["workers"], last["completed"]) == (steps, 2, 12)


async def test_a_connection_moves_in_the_middle_of_a_large_request_and_streams_from_there(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        host, port = stack.client.url.removeprefix("http://").split(":")
        long = json.dumps({"messages": [{"role": "user", "content": "so " * 300}], "stream": True}).encode()
        long = b" " * 100_000 + long
        reader, writer = await asyncio.open_connection(host, int(port))
        for turn in range(6):  # by turns to both workers, over one connection
            path = f"/{uid_of(turn % 2)}/p1/v1/chat/completions"
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(long)}\r\n\r\n".encode()
            for part in (head[:7], head[7:] + long[:70_000], long[70_000:]):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            assert answer.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in answer
        writer.close()
        assert {uid: len(steps) for uid, steps in stack.pool.steps.items()} == {uid_of(0): 3, uid_of(1): 3}
        check_fidelity(stack.engines, stack.pool)


async def test_pipelined_requests_of_two_workers_are_told_to_use_two_connections(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        host, port = stack.client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        asks = [f"GET /{uid_of(worker)}/p1/v1/models HTTP/1.1\r\nhost: x\r\n\r\n".encode() for worker in (0, 1)]
        writer.write(b"".join(asks))
        answer = b""
        while b"misdirected_request" not in answer:
            answer += await asyncio.wait_for(reader.read(4096), 5)
        assert answer.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 421" in answer
        writer.close()


async def test_white_box_routes_find_the_owner_in_the_body(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        client = stack.client
        for name, worker in (("a", 0), ("b", 1)):
            uid = uid_of(worker, name=name)
            status, begun = await client.post("/init_trajectory", {"trajectory_uid": uid, "prompt_uid": "p1"})
            assert (status, begun["base_url"]) == (200, f"{client.url}/{uid}/p1/v1")
            params = {"max_tokens": 4}
            body = {"prompt_ids": [1, 2], "trajectory_uid": uid, "sampling_params": params}
            assert (await client.post("/generate", body))[0] == 200
        _, begun = await client.post("/init_trajectory", {"channel": "val"})
        await client.post(f"{begun['base_url'].removeprefix(client.url)}/chat/completions", {"messages": HELLO})
        assert stack.pool.steps[begun["trajectory_uid"]][0].channel == "val"
        steps = [
            {"prompt_ids": [1], "response_ids": [2], "rollout_log_probs": [-1.0], "prompt_uid": "p1",
             "trajectory_uid": uid_of(i % 2, name="ab"[i % 2]), "step_index": i // 2, "is_last": i > 1}
            for i in range(4)
        ]  # fmt: skip
        assert await client.post("/submit_steps", {"steps": steps}) == (200, {"accepted": 4, "duplicate": 0})
        assert (await client.post("/submit_steps", {"steps": steps[:1]}))[0] == 409, "it has been completed"
        assert {uid: end.num_steps for uid, end in stack.pool.ends.items()} == {
            uid_of(0, name="a"): 2,
            uid_of(1, name="b"): 2,
        }


async def test_engines_are_changed_in_every_worker_also_in_one_that_comes_later(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        third = await FakeEngine(7).start()
        gone = [one.url for one in stack.engines]
        assert (await stack.client.post("/engines", {"add": [third.url], "remove": gone}))[0] == 200
        os.kill(stack.workers[0].pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        await until_ready(stack.client)
        for uid in (uid_of(0), uid_of(1)):
            await stack.client.chat(uid, HELLO)
        assert len(third.calls) == 2
        await third.stop()


async def test_a_killed_worker_is_replaced_and_its_trajectories_go_on(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        for uid in (uid_of(0), uid_of(1)):
            await stack.client.chat(uid, HELLO)
        before = {one.pid for one in stack.workers}
        os.kill(min(before), signal.SIGKILL)
        await asyncio.sleep(0.3)
        await until_ready(stack.client)
        assert len(stack.workers) == 2 and len({one.pid for one in stack.workers} & before) == 1
        for uid in (uid_of(0), uid_of(1)):
            await stack.client.chat(uid, HELLO)
            assert (await stack.client.post(f"/{uid}/p1/v1/complete_trajectory", {}))[0] == 200
        reasons = {uid: [step.fork_reason for step in steps.values()] for uid, steps in stack.pool.steps.items()}
        assert sorted(reasons.values()) == [["", "parallel"], ["", "restart"]]
        assert {end.num_steps for end in stack.pool.ends.values()} == {2} and stack.pool.duplicates == 0
        assert "was killed by SIGKILL; another one takes its place" in (tmp_path / "gateway.log").read_text()


async def test_workers_that_keep_dying_end_the_gateway_with_the_cause(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        for _ in range(4):
            os.kill(stack.workers[0].pid, signal.SIGKILL)
            await asyncio.sleep(0.3)
            await until_ready(stack.client)
        os.kill(stack.workers[0].pid, signal.SIGKILL)
        assert await asyncio.to_thread(stack.process.wait, 5) == 1
        assert "death within 60 s" in (tmp_path / "gateway.log").read_text()


async def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    async with workers(tmp_path) as stack:
        left = stack.workers
        folders = {Path(one.laddr).parent for one in left[0].net_connections("unix") if one.laddr.endswith(".sock")}
        stack.process.kill()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, left, 5)
        assert len(gone) == 2 and not alive
        assert folders and not any(folder.exists() for folder in folders)
