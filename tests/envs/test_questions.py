"""Questions: what is asked, how answers are judged, splits that never meet."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rlctl.config.serving import Env
from rlctl.envs import family, instances
from rlctl.errors import ConfigError

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
ROWS = [{"question": f"What is {i} + {i}?", "answer": f"Twice {i}.\n#### {2 * i}"} for i in range(40)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text(lines(ROWS[:30]))
    (tmp_path / "test.jsonl").write_text(lines(ROWS[28:]))
    return tmp_path


def asked(folder: Path, **more) -> Env:
    return Env(name="questions", **{"path": str(folder), "val_split": "test", "max_turns": 1, **more})


def test_a_question_of_both_files_is_held_out_and_not_trained(folder):
    train = {one.key for one in instances(asked(folder), "train", 28)}
    val = {one.key for one in instances(asked(folder), "val", 12)}
    assert len(train) == 28 and len(val) == 12 and not train & val
    with pytest.raises(ConfigError, match="29 distinct train instances were asked for, but only 28"):
        instances(asked(folder), "train", 29)


def test_one_file_is_split_by_its_texts_and_parquet_reads_the_same(folder):
    alone = asked(folder / "train.jsonl", val_split="", val_percent=30)
    train, val = (list(family(alone).distinct(split, 0)) for split in ("train", "val"))
    assert len(train) + len(val) == 30 and val and not {one.key for one in train} & {one.key for one in val}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS[:30]), folder / "rows.parquet")
    parquet = asked(folder / "rows.parquet", val_split="", val_percent=30)
    assert list(family(parquet).distinct("train", 0)) == train


def test_the_order_depends_on_the_seed_only(folder):
    made = family(asked(folder))
    assert list(made.distinct("train", 3)) == list(made.distinct("train", 3))
    assert list(made.distinct("train", 3)) != list(made.distinct("train", 4))


def test_the_prompt_is_system_question_and_instruction(folder):
    env = asked(folder, system="Be exact.", instruction="Answer after ####.")
    made = family(env)
    episode = made.episode(next(made.distinct("val", 0)), 0)
    system, user = episode.messages
    assert system == {"role": "system", "content": "Be exact."}
    assert user["content"].startswith("What is ") and user["content"].endswith("?\nAnswer after ####.")


def test_the_right_number_is_success_and_the_truth_reaches_the_scorer(folder):
    made = family(asked(folder))
    instance = next(one for one in made.distinct("train", 0) if one.key == "What is 7 + 7?")
    assert made.task(instance)["ground_truth"] == "Twice 7.\n#### 14"
    assert made.floor(instance, 1) is None and made.ceiling(instance, 1) is None
    for answer, success in (("7 + 7 = 14\n#### 14", True), ("#### 15", False), ("no idea", False)):
        episode = made.episode(instance, 0)
        assert episode.feed(answer)
        facts = episode.facts()
        assert (facts.success, facts.env_reward) == (success, float(success))
        assert facts.format_errors == (answer == "no idea")
        assert facts.truncated is not success


def test_every_retry_halves_what_a_right_answer_is_worth(folder):
    made = family(asked(folder, max_turns=3, format_penalty=-0.5))
    instance = next(one for one in made.distinct("train", 0) if one.key == "What is 7 + 7?")
    episode = made.episode(instance, 0)
    assert not episode.feed("13")
    assert episode.messages[-1]["role"] == "user"
    assert not episode.feed("hm")
    assert episode.feed("14")
    facts = episode.facts()
    assert facts.turn_rewards == [0.0, 0.0, 0.25]
    assert facts.success and not facts.truncated
    assert facts.extra == {"format_penalty": -0.5, "turns": 3.0}
    with pytest.raises(ValueError, match="over"):
        episode.feed("14")


def test_exact_answers_are_compared_as_text(tmp_path):
    (tmp_path / "own.jsonl").write_text(lines([{"q": "Capital of France?", "a": "Paris"}] * 2))
    env = asked(tmp_path / "own.jsonl", val_split="", rule="exact", question_key="q", answer_key="a")
    made = family(env)
    found = [one for split in made.splits for one in made.distinct(split, 0)]
    assert len(found) == 1
    episode = made.episode(found[0], 0)
    assert episode.feed(" Paris\n") and episode.success


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question_key": "problem"}, r"row 1: no problem \(there are: question, answer\)"),
        ({"val_split": "dev"}, r"no dev\{.jsonl,.json,.parquet\} \(there are: bad.jsonl, test.jsonl, train.jsonl\)"),
        ({"path": "./nowhere"}, "no such file or folder"),
        ({"answer_key": "question", "train_split": "bad"}, "has no number"),
    ],
)
def test_data_that_cannot_be_used_is_an_error_that_names_the_place(folder, change, message):
    (folder / "bad.jsonl").write_text(lines([{"question": "Who?", "answer": "me"}]))
    with pytest.raises(ConfigError, match=message):
        instances(asked(folder, **change), "train", 1)


def test_a_line_that_is_not_json_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text(lines(ROWS[:1]) + "{oops\n")
    with pytest.raises(ConfigError, match=r"train\.jsonl:2: not JSON"):
        instances(asked(tmp_path / "train.jsonl", val_split=""), "train", 1)


@pytest.mark.skipif(not GSM8K.is_dir(), reason="GSM8K is not beside the checkout")
def test_every_line_of_gsm8k_is_an_instance_and_its_own_solutions_are_right():
    env = Env(name="gsm8k", path=str(GSM8K), max_turns=1)
    made = family(env)
    train, val = list(made.distinct("train", 0)), list(made.distinct("val", 0))
    lines = [len((GSM8K / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()) for name in ("train", "test")]
    assert [len(train), len(val)] == lines
    for one in val:
        episode = made.episode(one, 0)
        assert episode.feed(one.payload) and episode.success
