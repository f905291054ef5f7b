"""Every response token is trainable in exactly one sample, in exactly the context the engine saw."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.train.data.samples import BadSteps, TrainSample, build
from rlctl.wire.arrays import pack_floats, pack_ids, unpack_ids
from rlctl.wire.samples import Step


def step(
    index: int, parent: int, prompt: list[int], response: list[int], version: int = 0, warmth: float = 1.0
) -> Step:
    logprobs = [-(token % 97) / 10 for token in response]
    return Step(
        "t", index, pack_ids(prompt), pack_ids(response), pack_floats(logprobs), [(version, len(response))], parent,
        temperature=warmth,
    )  # fmt: skip


def test_a_chain_of_turns_is_one_sample() -> None:
    (one,) = build("t", [step(0, -1, [1, 2], [3], version=4), step(1, 0, [5], [6, 7], version=5, warmth=0.5)], 1.5)
    assert one.token_ids.tolist() == [1, 2, 3, 5, 6, 7]
    assert one.loss_mask.tolist() == [False, False, True, False, True, True]
    assert one.versions.tolist() == [4, 5, 5]
    assert [(call.temperature, call.tokens) for call in one.calls] == [(1.0, 1), (0.5, 2)]
    assert one.logprobs == pytest.approx([-0.3, -0.6, -0.7])
    assert one.advantages.tolist() == [1.5] * 3
    assert one.siblings_tokens == 3


def test_a_second_child_starts_a_sample_whose_shared_context_is_masked() -> None:
    steps = [step(0, -1, [1], [2]), step(1, 0, [3], [4]), step(2, 0, [5], [6]), step(3, 2, [7], [8])]
    first, second = build("t", steps)
    assert (first.token_ids.tolist(), first.loss_mask.tolist()) == ([1, 2, 3, 4], [False, True, False, True])
    assert second.token_ids.tolist() == [1, 2, 5, 6, 7, 8]
    assert second.loss_mask.tolist() == [False, False, False, True, False, True]


def test_a_fork_without_parent_is_a_sample_of_its_own() -> None:
    first, second = build("t", [step(0, -1, [1], [2]), step(1, -1, [9, 9], [3])])
    assert (first.token_ids.tolist(), second.token_ids.tolist()) == ([1, 2], [9, 9, 3])


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([step(0, 4, [1], [2])], "step 0 extends step 4"),
        ([step(1, 1, [1], [2])], "step 1 extends step 1"),
        ([step(0, -1, [], [2])], "empty prompt"),
        ([step(0, -1, [1], [2], warmth=0.0)], "temperature 0"),
        ([step(0, -1, [1], [2]), step(0, -1, [1], [2])], "same step_index"),
        (
            [msgspec.structs.replace(step(0, -1, [1], [2]), versions=[(0, 2)])],
            "1 response tokens, 1 log-prob.* 2 versions",
        ),
        ([msgspec.structs.replace(step(0, -1, [1], [2]), logprobs=pack_floats([float("nan")]))], "not finite"),
    ],
)
def test_steps_that_cannot_be_trained_on_are_named(steps: list[Step], words: str) -> None:
    with pytest.raises(BadSteps, match=words):
        build("t", steps)


@dataclass(frozen=True)
class Tree:
    steps: list[Step]
    order: list[int]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Any tree of steps, whose tokens are all different, in any order of arrival."""
    count, fresh, steps = draw(st.integers(1, 9)), iter(range(10_000)), []
    for index in range(count):
        parent = draw(st.integers(-1, index - 1))
        prompt = draw(st.integers(1 if parent == -1 else 0, 3))
        response = draw(st.integers(0, 3))
        steps.append(
            step(
                index,
                parent,
                [next(fresh) for _ in range(prompt)],
                [next(fresh) for _ in range(response)],
                version=index,
            )
        )
    return Tree(steps, draw(st.permutations(range(count))))


def context(steps: list[Step], index: int) -> list[int]:
    """What the engine saw when it sampled step `index`: written recursively, straight from the definition of a Step."""
    if index == -1:
        return []
    own, before = steps[index], steps[index].parent
    response = unpack_ids(steps[before].response_ids).tolist() if before != -1 else []
    return context(steps, before) + response + unpack_ids(own.prompt_ids).tolist()


@given(trees())
def test_every_response_token_is_trained_once_in_the_context_the_engine_saw(tree: Tree) -> None:
    samples = build("t", [tree.steps[i] for i in tree.order], advantage=1.0)
    seen: dict[int, tuple[TrainSample, int]] = {}
    for one in samples:
        for number, place in enumerate(one.places.tolist()):
            token = int(one.token_ids[place])
            assert token not in seen, "trained twice"
            seen[token] = (one, number)
    for index, own in enumerate(tree.steps):
        before = context(tree.steps, index)
        for offset, token in enumerate(unpack_ids(own.response_ids).tolist()):
            one, number = seen.pop(token)
            place = one.places[number]
            assert one.token_ids[:place].tolist() == before + unpack_ids(own.response_ids)[:offset].tolist()
            assert one.logprobs[number] == pytest.approx(-(token % 97) / 10, abs=1e-5)
            assert one.versions[number] == index
    assert not seen, "a token that nobody sampled is trained"


@given(trees())
def test_the_order_of_arrival_changes_nothing(tree: Tree) -> None:
    for one, other in zip(build("t", tree.steps), build("t", [tree.steps[i] for i in tree.order]), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.loss_mask.tolist() == other.loss_mask.tolist()
