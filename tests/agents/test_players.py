"""Agents that use tools, and agents of anybody's, against a model behind a real socket."""

from itertools import pairwise

import pytest

from rlctl.agents.call import Call
from rlctl.agents.choose import agent
from rlctl.agents.client import Client
from rlctl.config.serving import Env
from rlctl.envs.lookup import family
from rlctl.errors import ConfigError
from rlctl.wire.samples import Facts
from tests.agents import handmade
from tests.agents.scripted import Scripted, calls

HANDMADE = "tests.agents.handmade"


async def play(model: Scripted, timeout_s: float = 20.0, **keys: object) -> Facts:
    env = Env.model_validate({"name": "bandit", "max_turns": 1, **keys})
    made = family(env)
    player = agent(env)
    try:
        call = Call(model.url, made.episode(next(made.distinct("train", 0)), 0), {"temperature": 0.5}, timeout_s)
        async with Client(timeout_s=5, retries=0) as client:
            return await player.play(client, call)
    finally:
        await player.close()


async def test_tool_calls_come_before_the_answer_that_counts() -> None:
    first = calls(("calculator", '{"expression": "6*7"}'), ("calculator", "no json"))
    async with Scripted(first, "<answer>dragon</answer>") as model:
        facts = await play(model, tools=["calculator"])
    assert (facts.error, facts.success, facts.actions) == ("", True, 1)
    assert facts.turn_rewards == [0.0, facts.env_reward]  # aligned with the two model calls
    assert (facts.extra["tool_calls"], facts.extra["tool_failures"]) == (2.0, 1.0)
    assert model.asked[0]["tools"][0]["function"]["name"] == "calculator"
    said, *results = model.asked[1]["messages"][-3:]
    assert said["tool_calls"] == first["tool_calls"]
    assert [(r["role"], r["tool_call_id"]) for r in results] == [("tool", "call_0"), ("tool", "call_1")]
    assert results[0]["content"] == "42" and results[1]["content"].startswith("error: arguments are no JSON")
    assert model.ends[0]["status"] == "complete"


async def test_a_prompt_extends_the_one_before_so_that_nothing_forks() -> None:
    call = calls(("calculator", '{"expression": "1+1"}'))
    async with Scripted(call, "<answer>Left</answer>", call, "<answer>Up</answer>") as model:
        await play(model, tools=["calculator"], name="frozenlake", max_turns=2, max_actions=2)
    prompts = [asked["messages"] for asked in model.asked]
    assert all(after[: len(before)] == before for before, after in pairwise(prompts))
    assert [m["role"] for m in prompts[3]][-5:] == ["tool", "assistant", "user", "assistant", "tool"]


async def test_past_the_limit_the_words_beside_a_call_are_the_answer() -> None:
    again = calls(("calculator", '{"expression": "1"}'))
    async with Scripted(again, again, again) as model:
        facts = await play(model, tools=["calculator"], max_tool_calls=2)
    assert facts.extra["tool_calls"] == 2.0 and facts.format_errors == 1
    assert facts.turn_rewards == [0.0, 0.0, 0.0]


async def test_a_class_of_anybodys_plays_and_is_closed() -> None:
    before = handmade.Twice.closed
    async with Scripted("nonsense", "<answer>dragon</answer>") as model:
        facts = await play(model, agent=f"{HANDMADE}:Twice")
    assert facts.success and len(model.asked) == 2 and model.asked[0]["temperature"] == 0.5
    assert model.ends[0]["facts"]["success"] is True
    assert handmade.Twice.closed == before + 1


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Raises", "agent_raised: KeyError: 'lost'"),
        ("Sleeps", "episode_timeout: not over after 0.2 s"),
        ("Odd", f"agent_result: {HANDMADE}:Odd returned int, not Facts or None"),
    ],
)
async def test_what_a_class_does_wrong_is_a_fact_about_the_episode(name: str, error: str) -> None:
    async with Scripted() as model:
        facts = await play(model, timeout_s=0.2, agent=f"{HANDMADE}:{name}")
        assert facts.error == error
        assert model.ends[0]["status"] == "failed"


async def test_a_refused_model_call_keeps_its_cause() -> None:
    async with Scripted() as model:  # nothing to say: a 500
        facts = await play(model, agent=f"{HANDMADE}:Twice")
    assert facts.error.startswith("http_500")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"agent": "nowhere"}, "expected module:Class"),
        ({"agent": f"{HANDMADE}:Twice", "tools": ["python"]}, "agent and tools: one of them plays"),
        ({"tools": ["python"], "context": "last"}, "not for tools"),
        ({"command": ["x"], "context": "summary"}, "not for command"),
    ],
)
def test_contradictions_are_told(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Env.model_validate({"name": "bandit", **keys})


@pytest.mark.parametrize(("name", "message"), [("Missing", "cannot be imported"), ("Idle", "lacks `async def play")])
def test_a_class_that_cannot_play_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(Env.model_validate({"name": "bandit", "agent": f"{HANDMADE}:{name}"}))
