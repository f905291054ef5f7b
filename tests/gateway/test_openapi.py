"""GET /openapi.json is true: every route, every body, every answer; and schemathesis fuzzes all of it without a 5xx."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
from aiohttp import web
from conftest import Stack, in_a_thread, running
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from rlctl.gateway.routes import openapi
from rlctl.gateway.routes.episodes import ADDRESS
from rlctl.wire.messages import FeedbackTaken

CALL = '<think>Hm.</think>Well. <tool_call>{"name": "move", "arguments": {"to": 2}}</tool_call>'
TOOL = {"name": "move", "description": "Go.", "parameters": {"type": "object"}}


def path_of(one: openapi.Operation, uid: str = "t1") -> str:
    return one.path.format(trajectory_uid=uid, prompt_uid="p1")


def validator(schema: dict[str, Any], components: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": components})


def holds(document: dict[str, Any], one: openapi.Operation, status: int, value: Any) -> None:
    """The answer is one that the document names for this route and status."""
    answers = document["paths"][one.path][one.method.lower()]["responses"]
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    validator(schema, document["components"]).validate(value)


async def served(stack: Stack) -> dict[str, Any]:
    return json.loads((await stack.client.get("/openapi.json"))[1])


async def test_it_names_the_routes_that_there_are_and_no_others(stack: Stack, monkeypatch) -> None:
    seen: dict[str, dict[str, tuple[str, Any]]] = {}
    monkeypatch.setattr(
        "rlctl.gateway.routes.app.App._find",
        lambda self, scope: seen.update(fixed=self.fixed, based=self.based) or 1 / 0,
    )
    await stack.client.get("/health")
    routes = {(method, path) for path, (method, _) in seen["fixed"].items()}
    routes |= {(method, openapi.BASE + path) for path, (method, _) in seen["based"].items()}
    described = {(one.method, one.path) for one in openapi.OPERATIONS}
    assert {pair for pair in routes if not pair[1].startswith("/sibling")} == described


async def test_bodies_that_it_shows_are_taken_and_the_answers_are_as_it_says(tmp_path: Path) -> None:
    async def feedback(message: Any) -> FeedbackTaken:
        return FeedbackTaken(rescored=True)

    async with RewardService() as reward, running(tmp_path, reward_url=reward) as stack:
        stack.pool.feedback = feedback
        document = await served(stack)
        assert document["openapi"] == "3.1.0"
        for one in openapi.OPERATIONS:
            if one.method == "GET":
                text = (await stack.client.get(path_of(one)))[1]
                if one.reply is not None:
                    holds(document, one, 200, json.loads(text))
                continue
            body = document["paths"][one.path]["post"]["requestBody"]["content"]["application/json"]
            assert body["example"] == one.example
            validator(body["schema"], document["components"]).validate(one.example)
            uid = "t2" if one.path.endswith("register_trajectory") else "t1"  # t1 has steps: too late for a channel
            status, value = await stack.client.post(path_of(one, uid), one.example)
            assert status == 200, (one.path, value)
            holds(document, one, 200, value)


async def test_answers_with_everything_in_them_are_as_it_says(tmp_path: Path) -> None:
    """Tool calls, log-probabilities, several choices, cut answers, ids, stops."""
    async with running(tmp_path) as stack:
        document = await served(stack)
        say = [{"role": "user", "content": "go"}]
        chat = {"messages": say, "tools": [{"type": "function", "function": TOOL}]}
        anthropic = {"name": "move", "input_schema": {"type": "object"}}
        for path, bodies in {
            "chat/completions": [{**chat, "n": 3, "logprobs": True}, {**chat, "max_tokens": 1}],
            "completions": [{"prompt": "x", "logprobs": 0, "return_token_ids": True, "n": 2, "max_tokens": 2}],
            "responses": [{"input": "x", "tools": [{"type": "function", **TOOL}], "metadata": {"a": "b"}},
                          {"input": "x", "max_output_tokens": 1, "instructions": "Go."}],
            "messages": [{"messages": say, "tools": [anthropic], "max_tokens": 60, "system": "x"},
                         {"messages": say, "max_tokens": 1}, {"messages": say, "max_tokens": 60,
                                                              "stop_sequences": ["ll"]}],
        }.items():  # fmt: skip
            one = next(one for one in openapi.OPERATIONS if one.path == openapi.BASE + path)
            for body in bodies:
                stack.engine.script = [CALL]
                status, value = await stack.client.post(path_of(one), body)
                assert status == 200, value
                holds(document, one, 200, value)


async def test_errors_are_as_it_says(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "k")
    async with running(tmp_path, admin_key_env="GATEWAY_KEY", max_body_bytes=100) as stack:
        key = {"headers": {"x-api-key": "k"}}
        _, text = await stack.client.get("/openapi.json")
        assert json.loads(text)["error"]["code"] == "invalid_api_key"
        document = openapi.document()
        chat = openapi.OPERATIONS[0]
        anthropic = next(one for one in openapi.OPERATIONS if one.anthropic)
        for one in (chat, anthropic):
            for how, wanted in (
                ({"data": b"{}"}, 401),
                ({"data": b"{", **key}, 400),
                ({"data": b"x" * 101, **key}, 413),
            ):
                status, value = await stack.client.post(path_of(one), **how)
                assert status == wanted
                holds(document, one, status, value)
        stack.engine.status = 500
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
        status, value = await stack.client.post(path_of(anthropic), body, **key)
        assert status == 502
        holds(document, anthropic, status, value)


async def test_a_405_names_the_method_that_is_taken(stack: Stack) -> None:
    for method, path, wanted in (("PUT", "/generate", "POST"), ("DELETE", "/t/p/v1/models", "GET")):
        async with stack.client.http.request(method, stack.client.url + path) as response:
            assert (response.status, response.headers["allow"]) == (405, wanted)


# ---------------------------------------------------------------- fuzzing


class RewardService:
    """A reward service that gives everything 1."""

    async def __aenter__(self) -> str:
        async def score(request: web.Request) -> web.Response:
            return web.json_response({"reward": 1.0})

        app = web.Application()
        app.router.add_post("/score", score)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ready, over, address = threading.Event(), threading.Event(), []

    async def reward() -> None:
        async with RewardService() as url:
            address.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(reward(),))
    thread.start()
    assert ready.wait(30)
    with in_a_thread(tmp_path_factory.mktemp("openapi"), reward_url=address[0]) as url:
        yield url
    over.set()
    thread.join()


@pytest.fixture(scope="module")
def document(gateway: str) -> Any:
    return schemathesis.openapi.from_url(f"{gateway}/openapi.json")


CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def kept_here(case: Any) -> None:
    """No engines but on this machine: the gateway would ask after their health."""
    if case.path == "/engines" and isinstance(case.body, dict) and isinstance(case.body.get("add"), list):
        here = "http://127.0.0.1:9"
        added = case.body["add"]
        case.body["add"] = [here if isinstance(one, str) and ADDRESS.fullmatch(one) else one for one in added]


BIG = 2**70


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/feedback", {"trajectory_uid": "t", "value": 1, "step_index": BIG}),
        ("/feedback", {"trajectory_uid": "t", "value": 1, "step_index": -2}),
        ("/init_trajectory", {"metadata": {"a": BIG}}),
        ("/t1/p1/v1/register_trajectory", {"metadata": {"a": 10**400}}),
        ("/t1/p1/v1/complete_trajectory", {"facts": {"actions": BIG}}),
        ("/generate", {"prompt_ids": [1], "trajectory_uid": "a\r\nx-evil: 1"}),
        ("/generate", {"prompt_ids": [1], "trajectory_uid": "ü"}),
        *(
            (
                "/submit_steps",
                {
                    "steps": [
                        {"prompt_ids": [1], "response_ids": [2], "rollout_log_probs": [-0.5], "trajectory_uid": "w"}
                        | {"prompt_uid": "p"}
                        | wrong
                    ]
                },
            )
            for wrong in ({"step_index": BIG}, {"policy_version": BIG}, {"rollout_log_probs": [-1e300]})
        ),
    ],
)
async def test_numbers_and_names_that_no_message_can_carry_are_a_400(stack: Stack, path: str, body: Any) -> None:
    status, answer = await stack.client.post(path, body)
    assert status == 400, answer
    assert (await stack.client.post("/t1/p1/v1/complete_trajectory", {"status": "failed"}))[0] in (200, 404)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("one", openapi.OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_no_request_makes_a_5xx_or_an_answer_that_is_not_in_the_document(
    document: Any, one: openapi.Operation, mode: GenerationMode
) -> None:
    """As the document says requests are, and as it says they are not."""
    if mode is GenerationMode.NEGATIVE and one.method == "GET" and not one.path.startswith(openapi.BASE):
        return  # there is nothing about it that could be wrong
    if mode is GenerationMode.NEGATIVE and one.passes_on:
        return  # nor about this

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=document[one.path][one.method].as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        kept_here(case)
        case.call_and_validate(checks=CHECKS, timeout=20)

    fuzz()
