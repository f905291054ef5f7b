"""Keys, bounds, and whatever a hostile client may send: a clear 4xx, never a 5xx, no memory kept."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Stack, in_a_thread, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlctl.config.serving import Gateway
from rlctl.errors import ConfigError
from rlctl.telemetry.metrics import read

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
CHAT = "/t1/p1/v1/chat/completions"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_with_an_admin_key_every_route_but_health_needs_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "very secret")
    async with running(tmp_path, admin_key_env="GATEWAY_KEY") as stack:
        client = stack.client
        assert (await client.get("/health"))[0] == 200
        for path in ("/metrics", "/ready", "/t1/p1/v1/models"):
            assert (await client.get(path))[0] == 401
        for path in ("/init_trajectory", "/generate", "/submit_steps", CHAT):
            for headers in ({}, bearer(""), bearer("very secre"), {"x-api-key": "none"}):
                status, body = await client.post(path, {}, headers=headers)
                assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.post("/t1/p1/v1/messages", {}))[1]["error"]["type"] == "authentication_error"
        assert (await client.post(CHAT, HELLO, headers=bearer("very secret")))[0] == 200
        _, begun = await client.post("/init_trajectory", {}, headers={"x-api-key": "very secret"})
        base, key = begun["base_url"].removeprefix(client.url), begun["api_key"]
        assert base.endswith(f"/{begun['prompt_uid']}/{key}/v1")
        assert (await client.post(f"{base}/chat/completions", HELLO, headers=bearer("none")))[0] == 200
        plain = f"/{begun['trajectory_uid']}/{begun['prompt_uid']}/v1/chat/completions"
        assert (await client.post(plain, HELLO, headers=bearer(key)))[0] == 200
        assert (await client.post(plain, HELLO, headers={"x-api-key": key}))[0] == 200
        assert (await client.post(CHAT, HELLO, headers=bearer(key)))[0] == 401, "another trajectory"
        assert (await client.post("/init_trajectory", {}, headers=bearer(key)))[0] == 401, "the admin's route"


async def test_keys_stay_out_of_the_log(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "very secret")
    async with running(tmp_path, admin_key_env="GATEWAY_KEY", access_log=True) as stack:
        _, begun = await stack.client.post("/init_trajectory", {}, headers=bearer("very secret"))
        monkeypatch.setattr("rlctl.gateway.dialects.chat.parse", lambda *_: 1 / 0)
        base = begun["base_url"].removeprefix(stack.client.url)
        assert (await stack.client.post(f"{base}/chat/completions", HELLO))[0] == 500
    assert "ZeroDivisionError" in caplog.text
    rows = list(read(tmp_path / "metrics" / "access.jsonl"))
    assert {(row["route"], row["status"]) for row in rows} >= {("/init_trajectory", 200), ("chat/completions", 500)}
    assert rows[-1]["uid"] == begun["trajectory_uid"] and rows[-1]["ms"] > 0
    for text in (caplog.text, json.dumps(rows)):
        assert "very secret" not in text and begun["api_key"] not in text and "hello" not in text


def test_an_address_others_can_reach_needs_a_key(monkeypatch) -> None:
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        Gateway(host=host)
    for host in ("0.0.0.0", "10.0.0.1", "::", "gateway.example"):
        with pytest.raises(ValidationError, match="admin_key_env"):
            Gateway(host=host)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Gateway(host="0.0.0.0", admin_key_env="NO_SUCH_KEY").admin_key()


# ---------------------------------------------------------------- hostile clients


async def raw(stack: Stack, data: bytes, wait_s: float = 5.0) -> bytes:
    """What comes back for these bytes, until the gateway closes or falls silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.client.url.rpartition(":")[2]))
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(65536), wait_s)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_broken_http_is_refused_and_the_gateway_goes_on(stack: Stack) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode()
    for data in (
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        head + b"content-length: -1\r\n\r\n",
        head + b"content-length: 99999999999999999999999\r\n\r\n",
        head + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        head + b"transfer-encoding: chunked\r\n\r\nZZZ\r\n",
        b"POST /\xff\xfe/p/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"GET /%ff%00/p/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /t1/p1/v1/../../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    ):
        answer = await raw(stack, data)
        assert answer == b"" or answer.split()[1][:1] == b"4", (data, answer)
    await stack.client.chat("t1", HELLO["messages"])


async def test_endless_and_slow_headers_are_cut_off(stack: Stack, monkeypatch) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode()
    assert b" 431 " in await raw(stack, head + b"x: " + b"y" * 200_000)
    monkeypatch.setattr("rlctl.gateway.door.guard.HEADERS_WITHIN_S", 0.3)
    assert b" 408 " in await raw(stack, head)
    assert b" 408 " in await raw(stack, b"")


async def test_a_body_that_drips_is_a_408(tmp_path: Path) -> None:
    async with running(tmp_path, body_timeout_s=0.3) as stack:

        async def drip():
            while True:
                yield b" "
                await asyncio.sleep(0.05)

        status, body = await stack.client.post(CHAT, data=drip())
        assert (status, body["error"]["code"]) == (408, "body_timeout")


async def test_a_hundred_megabytes_are_a_413_and_leave_no_memory_behind(stack: Stack) -> None:
    """Announced in content-length or not; the answer may be out before the client has sent all."""
    block, before = b"x" * 1_000_000, psutil.Process().memory_info().rss
    for head in (b"content-length: 100000000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.client.url.rpartition(":")[2]))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode() + head)
            answer = asyncio.create_task(reader.read(4096))
            try:
                for _ in range(100):
                    writer.write((b"f4240\r\n" + block + b"\r\n") if b"chunked" in head else block)
                    await writer.drain()
            except (ConnectionResetError, BrokenPipeError):
                pass  # cut off, as it may be
            assert b" 413 " in (await answer).splitlines()[0]
            writer.close()
    assert psutil.Process().memory_info().rss - before < 100_000_000
    await stack.client.chat("t1", HELLO["messages"])


async def test_deep_json_is_a_400_wherever_it_stands(stack: Stack) -> None:
    for depth in (200, 400, 600, 900, 990, 10_000, 100_000):
        deep = "[" * depth + "]" * depth
        objects = '{"a":' * depth + "1" + "}" * depth
        for body in (
            f'{{"messages": [{{"role": "user", "content": {deep}}}]}}',
            f'{{"messages": [{{"role": "user", "content": "x", "name": {deep}}}]}}',
            f'{{"messages": [{{"role": "user", "content": "x"}}], "stop": {objects}}}',
            deep,
        ):
            assert (await stack.client.post(CHAT, data=body.encode()))[0] == 400
        tools = f'{{"type": "function", "function": {{"name": "a", "parameters": {objects}}}}}'
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{tools}]}}'
        assert (await stack.client.post(CHAT, data=body.encode()))[0] in (200, 400)


async def test_a_client_that_leaves_mid_stream_leaves_nothing_behind(stack: Stack) -> None:
    stack.engine.script, stack.engine.pause_s = ["a b c d e f g h"] * 20, 0.02
    body = json.dumps({**HELLO, "stream": True}).encode()
    for number in range(20):
        head = f"POST /h{number}/p1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.client.url.rpartition(":")[2]))
        writer.write(head.encode() + body)
        await reader.read(100)
        writer.transport.abort()
    for _ in range(100):
        metrics = (await stack.client.get("/metrics"))[1]
        if len(stack.pool.steps) == 20 and "rlctl_gateway_unacknowledged 0" in metrics:
            break
        await asyncio.sleep(0.05)
    assert all(len(steps) == 1 for steps in stack.pool.steps.values()) and len(stack.pool.steps) == 20
    assert "rlctl_gateway_unacknowledged 0" in metrics
    assert 'status="500"' not in metrics


# ---------------------------------------------------------------- random requests

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KNOWN = {
    "/f/p/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "tools": [
        {"type": "function", "function": {"name": "a", "parameters": {}}}], "tool_choice": "auto", "stream": False},
    "/f/p/v1/completions": {"prompt": "x", "max_tokens": 3, "logprobs": 0, "n": 1},
    "/f/p/v1/responses": {"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "1",
        "output": "y"}], "tools": [{"type": "function", "name": "a"}], "text": {"format": {"type": "text"}}},
    "/f/p/v1/messages": {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 5,
        "system": "s", "tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "auto"}},
    "/f/p/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/init_trajectory": {"trajectory_uid": "a", "prompt_uid": "b", "channel": "c", "metadata": {}},
    "/generate": {"prompt_ids": [1, 2], "sampling_params": {"temperature": 1.0, "max_tokens": 4}},
    "/submit_steps": {"steps": [{"prompt_ids": [1], "response_ids": [2], "trajectory_uid": "w", "prompt_uid": "p",
        "rollout_log_probs": [-1.0], "step_index": 0}]},
    "/g/p/v1/register_trajectory": {"channel": "train", "metadata": {}},
    "/g/p/v1/complete_trajectory": {"reward": 1.0, "status": "failed", "facts": {}},
}  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A route with its good body, some values of which are replaced, taken away or added."""
    path = draw(st.sampled_from(sorted(KNOWN)))
    body = json.loads(json.dumps(KNOWN[path]))
    for _ in range(draw(st.integers(1, 3))):
        at: Any = body
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
                at[key] = draw(VALUES)
                break
            at = at[key]
    return path, body


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with in_a_thread(tmp_path_factory.mktemp("fuzz")) as url:
        yield url


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=requests())
def test_random_requests_never_make_a_5xx(gateway: str, request: tuple[str, Any]) -> None:
    import http.client

    path, body = request
    connection = http.client.HTTPConnection(gateway.removeprefix("http://"), timeout=20)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 500, (path, body, text)
