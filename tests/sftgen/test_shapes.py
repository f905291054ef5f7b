"""Forms and orders of the files."""

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from rlctl.config.serving import Env
from rlctl.sftgen.main import Order, generate

ENV = Env(name="sokoban")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("plain")
    generate(Order(ENV, 120, 10, 0), folder)
    return lines(folder / "train.jsonl")


def test_parquet_has_the_rows_of_jsonl(tmp_path, plain):
    summary = generate(Order(ENV, 120, 10, 0, form="parquet"), tmp_path)
    assert summary["files"] == ["train.parquet", "test.parquet"]
    assert parquet.read_table(tmp_path / "train.parquet").to_pylist() == plain
    assert len(parquet.read_table(tmp_path / "test.parquet")) == 10
    assert not (tmp_path / "train.jsonl").exists()


def test_parquet_bytes_do_not_depend_on_the_number_of_workers(tmp_path):
    for workers in (1, 2):
        generate(Order(ENV, 60, 5, 0, form="ragen-parquet"), tmp_path / str(workers), workers)
    assert (tmp_path / "1/train.parquet").read_bytes() == (tmp_path / "2/train.parquet").read_bytes()


def test_an_empty_test_file_is_a_parquet_file_too(tmp_path):
    generate(Order(ENV, 3, 0, 0, form="parquet"), tmp_path)
    assert len(parquet.read_table(tmp_path / "test.parquet")) == 0


@pytest.mark.parametrize("form", ["ragen-jsonl", "ragen-parquet"])
def test_ragen_rows_are_one_answer_each_with_all_that_came_before(tmp_path, plain, form):
    generate(Order(ENV, 120, 10, 0, form=form), tmp_path)
    if form == "ragen-jsonl":
        rows, test = lines(tmp_path / "train.jsonl"), lines(tmp_path / "test.jsonl")
    else:
        rows, test = (parquet.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("train", "test"))
    assert len(rows) == sum(row["plan_length"] for row in plain)
    first, second = rows[:2]
    assert set(first) == {"data_source", "prompt", "response", "ability", "reward_model", "extra_info"}
    assert first["prompt"] == plain[0]["messages"][:2]
    assert first["response"] == plain[0]["messages"][2]["content"]
    assert (first["data_source"], first["ability"]) == ("sokoban", "bfs")
    assert first["extra_info"] == {"split": "train", "index": plain[0]["seed"]}
    assert first["reward_model"] == {"style": "rule", "ground_truth": {"target": 0, "numbers": [0, 0]}}
    if plain[0]["plan_length"] > 1:
        assert second["prompt"] == [*first["prompt"], *plain[0]["messages"][2:4]]
    assert {row["extra_info"]["split"] for row in test} == {"test"}


def test_sorted_puts_short_plans_first_and_keeps_the_order_of_equals(tmp_path, plain):
    generate(Order(ENV, 120, 10, 0, curriculum="sorted"), tmp_path)
    assert lines(tmp_path / "train.jsonl") == sorted(plain, key=lambda row: row["plan_length"])


def test_buckets_double_in_length_and_are_mixed_inside(tmp_path, plain):
    generate(Order(ENV, 120, 10, 0, curriculum="bucketed", form="parquet"), tmp_path)
    found = parquet.read_table(tmp_path / "train.parquet").to_pylist()
    buckets = [(1, 1), (2, 3), (4, 7), (8, 15)]
    expected = [row for low, high in buckets for row in plain if low <= row["plan_length"] <= high]
    assert found == expected
    lengths = [row["plan_length"] for row in found]
    assert lengths != sorted(lengths)
