"""The words: prompts of both styles, and answers read strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.config.serving import Env
from rlctl.envs import family, text
from rlctl.envs.text import Parsed

LAKE = ("Left", "Down", "Right", "Up")


def env(**keys) -> Env:
    return Env(name="frozenlake", **keys)


def test_the_compact_prompt_is_the_state_with_a_space_before_every_cell():
    compact = env(style="compact")
    board = "P__O\n____\n_O__\n___G"
    opening = text.first_messages(compact, family(compact), board, left=10)
    assert opening == [{"role": "user", "content": " P _ _ O\n _ _ _ _\n _ O _ _\n _ _ _ G"}]
    assert text.next_message(compact, board, turn=2, left=9, reward=0.0) == opening[0]


def test_the_full_prompt_tells_rules_symbols_actions_turn_and_format():
    full = env(think=True, actions_per_turn=3, max_actions=7, slippery=True, success_rate=0.8)
    system, user = text.first_messages(full, family(full), "P_\n_G", left=7)
    assert system["role"] == "system"
    for part in (
        "slippery: a move goes the way you meant with probability 0.8",
        "O hole",
        "Actions: Left, Down, Right, Up",
        "up to 3 actions, separated by ||",
        "Turn 1\nState:\nP_\n_G\nActions left: 7\n",
        "<think>your thoughts</think><answer>action || action</answer>",
    ):
        assert part in user["content"]


def test_the_next_full_prompt_tells_the_reward_and_what_is_left():
    message = text.next_message(env(), "_P\n_G", turn=2, left=4, reward=-0.1 * 3)
    assert message["role"] == "user"
    assert message["content"].startswith("Reward: -0.3\n\nTurn 2\nState:\n_P\n_G\nActions left: 4\n")


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("<answer>Right</answer>", Parsed((2,), False, 0)),
        (" <answer> rIGHT </answer>\n", Parsed((2,), False, 0)),
        ("<answer>Up || Left</answer>", Parsed((3, 0), False, 0)),
        ("<answer>Up||Left||Down||Down</answer>", Parsed((3, 0, 1), False, 1)),
        ("<answer>Up || Jump || Left</answer>", Parsed((3, 0), True, 1)),
        ("<answer>Jump</answer>", Parsed((), True, 1)),
        ("<answer></answer>", Parsed((), True, 0)),
        ("<answer>Up ||</answer>", Parsed((3,), True, 0)),
        ("<answer>Up Left</answer>", Parsed((), True, 1)),
        ("Right", Parsed((), True, 0)),
        ("I go <answer>Right</answer>", Parsed((), True, 0)),
        ("<answer>Right</answer> done", Parsed((), True, 0)),
        ("<answer>Right</answer><answer>Left</answer>", Parsed((), True, 0)),
        ("<answer>Right", Parsed((), True, 0)),
        ("<think>so</think><answer>Right</answer>", Parsed((), True, 0)),
        ("", Parsed((), True, 0)),
    ],
)
def test_answers_without_thoughts(answer, read):
    assert text.parse(answer, env(actions_per_turn=3), LAKE, limit=3) == read


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("<think>a\nb</think> <answer>Right</answer>", Parsed((2,), False, 0)),
        ("<think></think><answer>Right</answer>", Parsed((2,), False, 0)),
        ("<think>1 < 2 > 0</think><answer>Right</answer>", Parsed((2,), False, 0)),
        ("<answer>Right</answer>", Parsed((), True, 0)),
        ("<think>a</think>b<answer>Right</answer>", Parsed((), True, 0)),
        ("<think>a<answer>Right</answer>", Parsed((), True, 0)),
        ("<think>a<think>b</think><answer>Right</answer>", Parsed((), True, 0)),
    ],
)
def test_answers_with_thoughts(answer, read):
    assert text.parse(answer, env(think=True), LAKE, limit=1) == read


@given(
    actions=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    think=st.booleans(),
    separator=st.sampled_from(["||", ",", ";", "->"]),
    thought=st.text().filter(lambda said: "think>" not in said),
)
def test_what_the_expert_writes_is_read_back_as_the_same_actions(actions, think, separator, thought):
    asked = env(think=think, separator=separator, actions_per_turn=8)
    written = text.answer(asked, [LAKE[action] for action in actions], thought)
    assert text.parse(written, asked, LAKE, limit=8) == Parsed(tuple(actions), False, 0)


@given(st.text(alphabet="<answer>/thinkUpLeft| \n"))
def test_no_text_breaks_the_parser_and_nothing_named_is_lost(said):
    read = text.parse(said, env(actions_per_turn=2), LAKE, limit=2)
    assert len(read.actions) <= 2
    assert read.invalid or read.actions
