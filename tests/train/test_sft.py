import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from rlctl.config import Config
from rlctl.errors import ConfigError, RlctlError
from rlctl.models.load import load_tokenizer
from rlctl.telemetry.metrics import read
from rlctl.train.data import demonstrations
from rlctl.train.data.demonstrations import Writing, encode, in_order, shuffled
from rlctl.train.model.policy import start_path
from rlctl.train.ranks import Ranks
from rlctl.train.sft import WarmStart, writing_of
from rlctl.wire.messages import Evaluate, Evaluated
from rlctl.wire.samples import EvalResult

from .conftest import FakeEngine, FakePeer, config_for

TALK = [
    {"role": "user", "content": "P _ O G"},
    {"role": "assistant", "content": "<answer>Right</answer>"},
    {"role": "user", "content": "_ P O G"},
    {"role": "assistant", "content": "<answer>Down</answer>"},
]


def test_demonstrations_have_the_tokens_and_the_boundaries_of_rl(model_dir: Path) -> None:
    tokenizer = load_tokenizer(str(model_dir))
    (one,) = encode("a", TALK, writing_of(tokenizer))
    text = tokenizer.apply_chat_template(TALK, tokenize=False)
    assert text.startswith(tokenizer.decode(one.token_ids)), "the pieces together are the template's text"
    answers = [[*tokenizer.encode(m["content"], add_special_tokens=False), tokenizer.eos_token_id] for m in TALK[1::2]]
    assert one.token_ids[one.places].tolist() == answers[0] + answers[1]
    first_prompt = tokenizer.apply_chat_template(TALK[:1], tokenize=False, add_generation_prompt=True)
    length = int(one.places[0])
    assert one.token_ids[:length].tolist() == tokenizer.encode(first_prompt, add_special_tokens=False)


def letters(render: Any) -> Writing:
    return Writing(render, lambda text: [ord(c) for c in text], end="$", end_id=ord("$"))


def test_pieces_are_encoded_separately() -> None:
    seen: list[str] = []

    def note(text: str) -> list[int]:
        seen.append(text)
        return [len(text)]

    def render(messages: Any, generate: bool) -> str:
        return "".join(">a$" if m["role"] == "assistant" else "q$" for m in messages) + (">" if generate else "")

    encode(
        "a", [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], Writing(render, note, "$", 0)
    )
    assert seen == ["q$>", "a"]


def test_a_template_that_rewrites_history_forks_and_trains_each_answer_once() -> None:
    def forgetful(messages: Any, generate: bool) -> str:
        """Answers before the last question are upper-cased, as templates that drop old thinking change them."""
        last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
        words = [
            ">" + (m["content"].upper() if i < last else m["content"]) + "$"
            if m["role"] == "assistant"
            else m["content"]
            for i, m in enumerate(messages)
        ]
        return "".join(words) + (">" if generate else "")

    talk = [
        {"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b"))
    ]
    samples = encode("a", talk, letters(forgetful))
    assert ["".join(map(chr, s.token_ids)) for s in samples] == ["q>a$", "q>A$r>b$"]
    assert ["".join(map(chr, s.token_ids[s.places])) for s in samples] == ["a$", "b$"]


def test_a_template_that_ends_answers_otherwise_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not end an answer"):
        encode("a", TALK[:2], letters(lambda messages, generate: "".join(m["content"] + "#" for m in messages)))


@pytest.mark.parametrize("row", ["{}", "not json", '{"messages": [{"role": "user"}]}', '{"messages": 3}'])
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"messages": TALK}) + "\n" + row + "\n")
    with pytest.raises(ConfigError, match=r"x\.jsonl:2: not a row"):
        demonstrations.read(tmp_path / "x.jsonl")


def test_missing_demonstrations_name_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rlctl sft-gen"):
        demonstrations.read(tmp_path / "x.jsonl")


def test_a_curriculum_is_shown_in_its_order_again_and_again() -> None:
    assert [in_order(5, 3, step) for step in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_every_epoch_shows_every_demonstration_once_in_an_order_of_its_own() -> None:
    picks = [i for step in range(6) for i in shuffled(10, 5, step, seed=1)]
    epochs = [picks[n : n + 10] for n in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert picks == [i for step in range(6) for i in shuffled(10, 5, step, seed=1)]


class Rates(FakePeer):
    """Rollout, whose measurements are the given success rates, one after the other."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = iter(rates)
        super().__init__(self.measure)

    def measure(self, request: Evaluate) -> Evaluated:
        assert (request.split, request.episodes) == ("train", 32)
        return Evaluated([EvalResult(request.step, "fake", request.name, 1.0, 32, next(self.rates), 0.1, 0.5)])


@pytest.fixture
def peers() -> Iterator[list[FakePeer]]:
    made: list[FakePeer] = []
    yield made
    for one in made:
        one.close()


def warm_start(model_dir: Path, run_dir: Path, engine: FakeEngine, rollout: FakePeer, **sft: Any) -> Config:
    data = run_dir / "sft" / "train.jsonl"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(json.dumps({"messages": TALK}) + "\n" for _ in range(8)))
    settings = {"max_steps": 9, "batch": 4, "stop_success": 0.5, "check_every": 2, "check_episodes": 32}
    return config_for(
        model_dir,
        run_dir,
        engine={"urls": [engine.url]},
        rollout={"port": rollout.port},
        eval=[{"name": "greedy", "temperature": 0.0}, {"name": "sampled"}],
        sft=settings | {"optim": {"lr": 5e-3}} | sft,
    )


def test_the_warm_start_stops_at_the_measured_success_and_rl_starts_from_it(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, peers: list[FakePeer]
) -> None:
    peers.append(Rates([0.1, 0.6]))
    config = warm_start(model_dir, tmp_path, engine, peers[0])
    WarmStart(config, Ranks(config)).to_the_end()
    assert [(one["version"], Path(one["path"]).name) for one in engine.told] == [(0, "v2"), (0, "v4")]
    assert {request.name for request in peers[0].seen} == {"sampled"}, "measured at rollout.temperature"
    rows = list(read(tmp_path / "metrics" / "sft.jsonl"))
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert [row["success"] for row in rows if "success" in row] == [0.1, 0.6]
    assert start_path(config) == str(tmp_path / "sft" / "model")
    AutoModelForCausalLM.from_pretrained(tmp_path / "sft" / "model")
    assert load_tokenizer(start_path(config)).eos_token == "<|im_end|>"


def test_a_warm_start_that_does_not_get_there_is_an_error(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, peers: list[FakePeer]
) -> None:
    peers.append(Rates([0.1, 0.2, 0.3, 0.4, 0.45]))
    config = warm_start(model_dir, tmp_path, engine, peers[0])
    with pytest.raises(RlctlError, match=r"reached 0\.450 success in sft\.max_steps = 9"):
        WarmStart(config, Ranks(config)).to_the_end()
    assert not (tmp_path / "sft" / "model").exists()


def test_without_a_bar_the_warm_start_takes_all_its_steps(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, peers: list[FakePeer]
) -> None:
    peers.append(Rates([]))
    config = warm_start(model_dir, tmp_path, engine, peers[0], stop_success=None)
    WarmStart(config, Ranks(config)).to_the_end()
    assert len(list(read(tmp_path / "metrics" / "sft.jsonl"))) == 9
    assert not engine.told


def test_a_demonstration_that_is_too_long_is_named(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, peers: list[FakePeer]
) -> None:
    peers.append(Rates([]))
    config = warm_start(model_dir, tmp_path, engine, peers[0])
    (tmp_path / "sft" / "train.jsonl").write_text(json.dumps({"messages": TALK * 20}) + "\n")
    with pytest.raises(ConfigError, match=r"demonstration 1 has \d+ tokens, more than model.max_context = 256"):
        WarmStart(config, Ranks(config)).to_the_end()


def test_sampled_tokens_are_trained_as_they_are_and_in_the_order_of_the_file(
    model_dir: Path, tmp_path: Path, engine: FakeEngine, peers: list[FakePeer]
) -> None:
    peers.append(Rates([]))
    tokens = tmp_path / "best.jsonl"
    rows = [{"token_ids": [number, 5, 6, 7], "loss_mask": [0, 0, 1, 1]} for number in range(3)]
    tokens.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"path": str(tokens), "shuffle": False}
    config = warm_start(model_dir, tmp_path, engine, peers[0], stop_success=None, max_steps=2, batch=2, data=data)
    trainer = WarmStart(config, Ranks(config))
    taken: list[list[int]] = []
    encoded = trainer.encoded

    def noted(uid: str, pick: int) -> list[Any]:
        (sample,) = encoded(uid, pick)
        taken.append(sample.token_ids.tolist())
        return [sample]

    trainer.encoded = noted  # type: ignore[method-assign]
    trainer.to_the_end()
    assert taken == [rows[place]["token_ids"] for place in (0, 1, 2, 0)]
    assert [row["tokens"] for row in read(tmp_path / "metrics" / "sft.jsonl")] == [4, 4]
