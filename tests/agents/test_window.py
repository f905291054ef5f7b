"""Context windows: what the model is sent, turn by turn."""

from hypothesis import given
from hypothesis import strategies as st

from rlctl.agents.window import REQUEST, Window, last_turns


def conversation(answered: int, system: bool = True) -> list[dict[str, str]]:
    """rules + state 1, answer 1, state 2, answer 2, ..., the newest state."""
    talk = [{"role": "system", "content": "S"}] if system else []
    talk.append({"role": "user", "content": "rules state1"})
    for turn in range(1, answered + 1):
        talk.append({"role": "assistant", "content": f"answer{turn}"})
        talk.append({"role": "user", "content": f"state{turn + 1}"})
    return talk


def words(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def test_the_last_turns_keep_the_rules_and_say_what_is_missing() -> None:
    talk = conversation(4)
    assert words(last_turns(talk, 2, opening=True)) == [
        *("S", "rules state1\n\n[2 turns left out]\n\nstate3", "answer3", "state4", "answer4", "state5"),
    ]
    assert words(last_turns(talk, 2, opening=False))[1] == "[2 turns left out]\n\nstate3"
    assert last_turns(talk, 4, opening=True) == talk
    assert words(last_turns(conversation(2), 1, opening=True))[1] == "rules state1\n\n[1 turn left out]\n\nstate2"


@given(st.integers(0, 12), st.integers(1, 5), st.booleans(), st.booleans())
def test_roles_always_take_turns_and_the_newest_message_is_last(
    answered: int, turns: int, system: bool, opening: bool
) -> None:
    talk = conversation(answered, system)
    shown = last_turns(talk, turns, opening)
    roles = [message["role"] for message in shown if message["role"] != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert shown[-1]["content"].endswith(talk[-1]["content"])
    assert sum(role == "assistant" for role in roles) == min(answered, turns)


def test_a_summary_is_asked_for_every_few_turns_and_stands_for_what_it_covers() -> None:
    window = Window("summary", 2, opening=True)
    assert window.request(conversation(1)) is None
    request = window.request(conversation(2))
    assert request is not None
    # it extends what the model has seen: nothing forks here
    assert words(request) == ["S", "rules state1", "answer1", "state2", "answer2", REQUEST]
    window.summarized(conversation(2), "went right twice")
    summary = "rules state1\n\nSummary of turns 1 to 2: went right twice\n\nstate3"
    assert words(window.shown(conversation(2))) == ["S", summary]
    assert words(window.shown(conversation(3))) == ["S", summary, "answer3", "state4"]
    assert window.request(conversation(3)) is None
    assert words(window.request(conversation(4)) or []) == ["S", summary, "answer3", "state4", "answer4", REQUEST]
    window.summarized(conversation(4), "and down")
    assert words(window.shown(conversation(4)))[1].endswith("Summary of turns 1 to 4: and down\n\nstate5")


def test_summaries_have_no_reward_of_their_own() -> None:
    window = Window("summary", 2, opening=True)
    for answered in (2, 4):
        window.summarized(conversation(answered), "x")
    # calls: answer 1, answer 2, summary, answer 3, answer 4, summary, answer 5
    assert window.rewards([1.0, 2.0, 3.0, 4.0, 5.0]) == [1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 5.0]


def test_the_full_window_is_the_conversation() -> None:
    window, talk = Window("full", 1, opening=True), conversation(3)
    assert window.shown(talk) == talk and window.request(talk) is None
    assert window.rewards([1.0]) == [1.0]
