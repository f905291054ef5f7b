"""The generator against full forward passes: whatever was cached, batched, aborted or swapped in between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.engines.embedded.generator import Generator
from rlctl.engines.embedded.lean import Lean, fits
from rlctl.engines.embedded.sequences import Sequence
from rlctl.engines.embedded.weights import BadWeights
from tests.engines.models import CONFIGS, CONTEXT, VOCABULARY, finish, generator, make, reference, sequence

TOLERANCE = 1e-4


def error(model: object, *sequences: Sequence) -> float:
    return max(float(np.abs(reference(model, s) - np.array(s.logprobs)).max()) for s in sequences)


def prompts(count: int, seed: int = 0, longest: int = 30) -> list[np.ndarray]:
    draws = np.random.default_rng(seed)
    return [draws.integers(0, VOCABULARY, int(draws.integers(1, longest))) for _ in range(count)]


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_logprobs_are_those_of_a_full_forward_pass_over_turns_with_a_kept_cache(kind: str) -> None:
    model = make(kind)
    running = generator(model, max_running=4)
    assert isinstance(running.model, Lean) == (kind not in ("mistral", "gpt2"))
    draws = np.random.default_rng(1)
    turn = [sequence(p, f"s{i}", max_tokens=int(draws.integers(1, 9))) for i, p in enumerate(prompts(7))]
    for _ in range(3):
        finish(running, *turn)
        assert error(model, *turn) < TOLERANCE
        turn = [
            sequence([*s.ids(0, s.length), *draws.integers(0, VOCABULARY, 5)], s.session, max_tokens=4) for s in turn
        ]
    assert running.counts["reused_tokens"] > 100


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_the_general_forward_serves_the_same_models_with_the_same_numbers(kind: str) -> None:
    model = make(kind)
    sequences = [sequence(p, max_tokens=6) for p in prompts(5)]
    finish(generator(model, general=True), *sequences)
    assert error(model, *sequences) < TOLERANCE


def test_a_model_with_sliding_windows_is_not_taken_for_a_plain_one() -> None:
    config = CONFIGS["qwen2"]()
    assert fits(config)
    config.layer_types = ["full_attention", "sliding_attention"]
    assert not fits(config)


def test_batching_does_not_change_what_greedy_decoding_says() -> None:
    model = make()
    together = [sequence(p, max_tokens=12, temperature=0.0) for p in prompts(11, seed=2)]
    finish(generator(model, max_running=5), *together)
    for one in together:
        alone = sequence(one.prompt, max_tokens=12, temperature=0.0)
        finish(generator(model, max_running=1), alone)
        assert alone.response == one.response


def test_a_greedy_token_has_its_logprob_at_temperature_one() -> None:
    model = make()
    one = sequence([1, 2, 3], max_tokens=5, temperature=0.0)
    finish(generator(model), one)
    assert error(model, one) < TOLERANCE


def test_a_turn_that_extends_the_session_computes_only_the_new_tokens() -> None:
    running = generator(make())
    first = sequence([1, 2, 3, 4], "s", max_tokens=3)
    finish(running, first)
    second = sequence([*first.ids(0, 7), 9, 9], "s", max_tokens=1)
    finish(running, second)
    assert second.reused == 6  # the last sampled token was never fed, so it and the two new ones are computed


def test_a_rewritten_history_reuses_only_what_is_common() -> None:
    model = make()
    running = generator(model)
    finish(running, sequence([1, 2, 3, 4, 5, 6], "s", max_tokens=2))
    changed = sequence([1, 2, 3, 7, 7, 7, 7], "s", max_tokens=4)
    finish(running, changed)
    assert changed.reused == 3
    assert error(model, changed) < TOLERANCE


def test_the_same_prompt_again_still_computes_its_last_token() -> None:
    model = make()
    running = generator(model)
    finish(running, sequence([1, 2, 3], "s", max_tokens=2))
    again = sequence([1, 2, 3], "s", max_tokens=2)
    finish(running, again)
    assert again.reused == 2
    assert error(model, again) < TOLERANCE


def test_a_group_with_one_prompt_computes_it_once_and_samples_for_each() -> None:
    model = make()
    running = generator(model)
    prompt = list(range(30))
    group = [sequence(prompt, f"s{i}", max_tokens=n) for i, n in enumerate((1, 9, 9, 9))]
    finish(running, *group, other := sequence([3] * 30, max_tokens=4))
    assert [s.reused for s in [*group, other]] == [0, 29, 29, 29, 0]
    assert error(model, *group, other) < TOLERANCE
    assert len({tuple(s.response) for s in group}) == 4


def test_a_parked_session_goes_on_in_its_row_and_one_that_lost_it_from_a_block() -> None:
    model = make()
    running = generator(model, max_running=2)
    first = [sequence(prompt, f"s{i}", max_tokens=3) for i, prompt in enumerate(prompts(3, seed=4, longest=20))]
    finish(running, first[0], first[1])
    assert (running.sessions.parked, running.sessions.tokens) == (2, 0)
    finish(running, first[2])
    assert (running.sessions.parked, running.sessions.tokens) == (2, first[0].length - 1)
    for before in (first[1], first[0]):
        finish(running, after := sequence([*before.ids(0, before.length), 5], before.session, max_tokens=3))
        assert after.reused == before.length - 1
        assert error(model, after) < TOLERANCE


def test_many_sessions_in_a_small_cache_stay_exact() -> None:
    model, draws = make(), np.random.default_rng(5)
    running = generator(model, max_running=6, cache_tokens=700)
    contexts = {f"s{i}": draws.integers(0, VOCABULARY, 4) for i in range(9)}
    for _ in range(12):
        names = draws.choice(list(contexts), size=5, replace=False)
        turn = [sequence([*contexts[n], *draws.integers(0, VOCABULARY, 2)], n, max_tokens=2) for n in names]
        finish(running, *turn)
        assert error(model, *turn) < TOLERANCE
        assert running.running.tokens + running.sessions.tokens <= 700
        contexts |= {s.session: s.ids(0, s.length) for s in turn}
    assert running.counts["reused_tokens"] > 200


def test_kept_sessions_stay_within_the_budget_and_the_oldest_goes_first() -> None:
    running = generator(make(), max_running=2, cache_tokens=2048)
    for name in "abcdefgh":
        finish(running, *(sequence(np.arange(80) % VOCABULARY, f"{name}{i}", max_tokens=2) for i in range(2)))
        assert running.running.tokens + running.sessions.tokens <= 2048
    old, recent = (sequence(np.arange(80) % VOCABULARY, name, max_tokens=1) for name in ("a0", "h1"))
    finish(running, old, recent)
    assert (old.reused, recent.reused) == (0, 79)


def test_kv_usage_is_what_running_sequences_claim_and_kept_sessions_claim_nothing() -> None:
    running = generator(make(), max_running=2, cache_tokens=2048)
    assert running.kv_usage == 0
    two = [sequence(np.arange(60) % VOCABULARY, f"s{i}", max_tokens=36) for i in range(2)]
    for one in two:
        running.add(one)
    running.step()
    assert running.kv_usage == 2 * (60 + 36) / 2048
    while running.busy:
        running.step()
    assert len(running.sessions) == 2 and running.kv_usage == 0


def test_tokens_after_new_weights_come_from_them_with_the_whole_context_recomputed() -> None:
    before, after = make(seed=1), make(seed=2)
    running = generator(before)
    sequences = [sequence(p, f"s{i}", max_tokens=20) for i, p in enumerate(prompts(5, seed=3))]
    for one in sequences:
        running.add(one)
    for _ in range(7):
        running.step()
    made = [len(s.response) for s in sequences]
    running.swap(after.state_dict(), 4)
    while running.busy:
        running.step()
    for one, count in zip(sequences, made, strict=True):
        assert 0 < count < 20
        assert one.versions() == [(0, count), (4, 20 - count)]
        old, new = reference(before, one), reference(after, one)
        np.testing.assert_allclose(one.logprobs[:count], old[:count], atol=TOLERANCE)
        np.testing.assert_allclose(one.logprobs[count:], new[count:], atol=TOLERANCE)
        assert np.abs(old[count:] - new[count:]).max() > 0.1


def test_a_kept_session_is_forgotten_with_its_weights() -> None:
    before, after = make(seed=1), make(seed=2)
    running = generator(before)
    finish(running, sequence([1, 2, 3, 4], "s", max_tokens=2))
    running.swap(after.state_dict(), 1)
    following = sequence([1, 2, 3, 4, 5], "s", max_tokens=3)
    finish(running, following)
    assert following.reused == 0
    assert following.versions() == [(1, 3)]
    assert error(after, following) < TOLERANCE


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(kind: str) -> None:
    model = make(kind)
    running = generator(model)
    weights = dict(make(kind, seed=9).state_dict())
    name = next(n for n in weights if n.endswith("norm.weight") or n.endswith("ln_f.weight"))
    for wrong, message in (
        ({n: w for n, w in weights.items() if n != name}, "missing"),
        (weights | {name: weights[name][:3]}, "the model's is"),
        (weights | {"extra": weights[name]}, "unknown"),
    ):
        with pytest.raises(BadWeights, match=message):
            running.swap(wrong, 1)
    one = sequence([1, 2, 3], max_tokens=3)
    finish(running, one)
    assert one.versions() == [(0, 3)]
    assert error(model, one) < TOLERANCE


def test_aborting_frees_the_row_for_who_waits() -> None:
    running = generator(make(), max_running=1)
    first, second = sequence([1], max_tokens=50), sequence([2], max_tokens=2)
    running.add(first)
    running.add(second)
    running.step()
    assert second.row == -1
    running.abort(first)
    while running.busy:
        running.step()
    assert (first.finish, second.finish, len(second.response)) == ("abort", "length", 2)
    running.abort(second)
    assert second.finish == "length"


def test_aborting_one_that_waits_takes_it_out_of_the_queue() -> None:
    running = generator(make(), max_running=1)
    first, second = sequence([1], max_tokens=3), sequence([2], max_tokens=3)
    running.add(first)
    running.add(second)
    running.abort(second)
    while running.busy:
        running.step()
    assert (len(first.response), len(second.response)) == (3, 0)


def test_a_stop_token_ends_the_response_and_belongs_to_it() -> None:
    running = generator(make())
    plain = sequence([1, 2, 3], max_tokens=8, temperature=0.0)
    finish(running, plain)
    stop = plain.response[2]
    stopped = sequence([1, 2, 3], max_tokens=8, temperature=0.0, stop_ids=frozenset([stop]))
    finish(running, stopped)
    assert stopped.finish == "stop"
    assert stopped.response == plain.response[: plain.response.index(stop) + 1]


def test_what_cannot_fit_is_refused_not_cut() -> None:
    running = generator(make())
    with pytest.raises(ValueError, match="are possible"):
        running.add(sequence([1] * CONTEXT, max_tokens=1))
    full = sequence([1] * (CONTEXT - 10), max_tokens=10)
    finish(running, full)
    assert len(full.response) == 10


def test_the_same_seed_gives_the_same_tokens_in_any_company() -> None:
    model = make()
    alone = sequence([1, 2, 3], max_tokens=15, seed=5)
    finish(generator(model), alone)
    accompanied, other = sequence([1, 2, 3], max_tokens=15, seed=5), sequence([1, 2, 3], max_tokens=15, seed=6)
    finish(generator(model), sequence([4, 4], max_tokens=9), other, accompanied, sequence([5], max_tokens=20))
    assert accompanied.response == alone.response
    assert other.response != alone.response


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_order_of_joining_stepping_aborting_and_swapping_keeps_every_token_exact(data: st.DataObject) -> None:
    models = {0: make(seed=1), 1: make(seed=2)}
    running: Generator = generator(models[0], max_running=3, cache_tokens=300)
    everything: list[Sequence] = []
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["add", "step", "step", "step", "abort", "swap"]))
        if action == "add":
            session = data.draw(st.sampled_from(["", "a", "b"]))
            ended = [s for s in everything if s.finish and s.session == session and s.length < 60]
            start = ended[-1].ids(0, ended[-1].length).tolist() if ended else []
            prompt = start + data.draw(
                st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12) | st.just(list(range(20)))
            )
            everything.append(sequence(prompt, session, max_tokens=data.draw(st.integers(1, 8))))
            running.add(everything[-1])
        elif action == "step" and running.busy:
            running.step()
        elif action == "abort" and everything:
            running.abort(data.draw(st.sampled_from(everything)))
        elif action == "swap":
            running.swap(models[(running.version + 1) % 2].state_dict(), running.version + 1)
    while running.busy:
        running.step()
    for one in everything:
        assert one.finish in ("length", "abort")
        assert sum(count for _, count in one.versions()) == len(one.response) == len(one.logprobs)
        at = 0
        for version, count in one.versions():
            expected = reference(models[version % 2], one)[at : at + count]
            np.testing.assert_allclose(one.logprobs[at : at + count], expected, atol=TOLERANCE)
            at += count
