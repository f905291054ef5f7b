"""What is told of a growing answer is always the beginning of what the whole answer turns out to be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.gateway.text.speech import Speech, Teller, after, message, of_model
from rlctl.gateway.text.tools import FAMILIES

WORDS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        '{"name": "a"}',
        "</tool_call>",
        "[TOOL_CALLS]",
        "[{",
        '"',
        " ",
        "\n",
        "x",
        "{",
    ]
)
SPEECHES = st.builds(
    Speech, st.sampled_from(list(FAMILIES.values())), st.booleans(), st.booleans(), st.sampled_from(["", "<tool_call>"])
)


@settings(deadline=None, max_examples=400)
@given(words=st.lists(WORDS, max_size=12), speech=SPEECHES, size=st.integers(1, 5))
def test_the_pieces_add_up_to_the_message(words: list[str], speech: Speech, size: int) -> None:
    text = "".join(words)
    teller, told = Teller(speech), {"reasoning": "", "content": ""}
    pieces = [piece for at in range(0, len(text), size) for piece in teller.hear(text[at : at + size])]
    whole = message(text, speech)
    for kind, piece in [*pieces, *teller.rest(whole)]:
        told[kind] += piece
    assert told == {"reasoning": whole.get("reasoning_content", ""), "content": whole["content"] or ""}


def test_text_is_told_at_once_where_nothing_else_can_come_of_it() -> None:
    teller = Teller(Speech(FAMILIES["hermes"], thinks=True))
    heard = [teller.hear(text) for text in ("<thi", "nk>so", " be it</th", "ink>\n\nI", " go <tool", "_call>{}")]
    assert heard == [[], [("reasoning", "so")], [("reasoning", " be it")], [("content", "I")], [("content", " go")], []]


def test_reasoning_is_split_where_the_template_takes_it_back() -> None:
    speech = of_model("{{ message.reasoning_content }}")
    assert message("<think>a</think>\n\nb", speech) == {"role": "assistant", "content": "b", "reasoning_content": "a"}
    assert message("<think>a", speech)["content"] == ""
    opened = after(speech, "...<think>\n")
    assert message("a</think>b", opened) == {"role": "assistant", "content": "b", "reasoning_content": "a"}
    assert message("<think>a</think>b", of_model("no thoughts"))["content"] == "<think>a</think>b"
