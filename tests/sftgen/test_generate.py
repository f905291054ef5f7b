"""Demonstrations: every one replays to success, reads back, and the files do not depend on who wrote them."""

import json
from pathlib import Path

import pytest

from rlctl.config.serving import Env
from rlctl.envs import Episode, family, instances
from rlctl.errors import ConfigError
from rlctl.sftgen.main import Order, generate

ENVS = [
    Env(name="frozenlake", style="compact"),
    Env(name="frozenlake", size=6, maps="ragen_v1", actions_per_turn=3, max_turns=5, think=True),
    Env(name="sokoban"),
    Env(name="sokoban", rooms="ragen", rows=7, cols=7, boxes=2, search_depth=10, actions_per_turn=4, max_actions=30),
]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("env", ENVS, ids=lambda env: f"{env.name}-{env.actions_per_turn}")
def test_every_demonstration_replayed_as_text_reaches_success_with_the_same_prompts(env, tmp_path):
    generate(Order(env, 60, 6, 100_000), tmp_path)
    made = family(env)
    for name, count in (("train", 60), ("test", 6)):
        written = rows(tmp_path / f"{name}.jsonl")
        assert len({row["instance"] for row in written}) == len(written) == count
        for row in written:
            episode = Episode(env, made, made.instance(row["seed"]))
            for message in row["messages"]:
                if message["role"] == "assistant":
                    episode.feed(message["content"])
            facts = episode.facts()
            assert episode.messages == row["messages"]
            assert (facts.success, facts.format_errors, facts.extra["dropped_actions"]) == (True, 0, 0)
            assert facts.actions == row["plan_length"]
            assert (row["split"], row["success"], row["env"]) == (name, True, env.name)


def test_demonstrations_never_meet_the_boards_of_rl(tmp_path):
    env = Env(name="frozenlake")
    generate(Order(env, 200, 20, 0), tmp_path)
    shown = [row["instance"] for name in ("train", "test") for row in rows(tmp_path / f"{name}.jsonl")]
    played = {one.key for split in ("train", "val") for one in instances(env, split, 200, 0)}
    assert len(set(shown)) == 220
    assert not played & set(shown)


@pytest.mark.parametrize("env", [ENVS[0], ENVS[2]], ids=lambda env: env.name)
def test_the_bytes_and_counts_do_not_depend_on_the_number_of_workers(env, tmp_path):
    summaries = []
    for workers in (1, 2):
        summary = generate(Order(env, 200, 20, 5), tmp_path / str(workers), workers)
        summaries.append({key: value for key, value in summary.items() if key not in ("workers", "seconds")})
    assert summaries[0] == summaries[1]
    for name in ("train.jsonl", "test.jsonl"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_every_seed_is_accounted_for(tmp_path):
    summary = generate(Order(Env(name="sokoban", rooms="ragen", max_actions=4), 100, 10, 100_000), tmp_path)
    names = ("written", "duplicates", "unsolvable", "too_deep", "too_large", "no_instance", "other_splits", "surplus")
    assert sum(summary[name] for name in names) == summary["seeds"]
    assert summary["too_deep"] > 0 < summary["duplicates"]
    assert max(row["plan_length"] for row in rows(tmp_path / "train.jsonl")) == 4
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_max_depth_skips_longer_plans(tmp_path):
    summary = generate(Order(Env(name="sokoban"), 50, 0, 0, max_depth=3), tmp_path)
    assert summary["too_deep"] > 0
    assert max(row["plan_length"] for row in rows(tmp_path / "train.jsonl")) == 3
    assert (tmp_path / "test.jsonl").read_bytes() == b""


def test_several_episodes_of_one_map_go_different_optimal_ways(tmp_path):
    generate(Order(Env(name="frozenlake"), 40, 0, 0, episodes=5), tmp_path)
    written = rows(tmp_path / "train.jsonl")
    assert len(written) == 200
    assert len({row["instance"] for row in written}) == 40
    assert len({json.dumps(row["messages"]) for row in written}) > 80
    assert all(row["success"] for row in written)


def test_the_expert_on_slippery_ice_wins_as_often_as_value_iteration_says():
    env = Env(name="frozenlake", maps="ragen", slippery=True)
    made = family(env)
    lakes = [made.instance(seed) for seed in range(150)]
    wins = [made.demonstrate(lake, number).success for lake in lakes for number in range(10)]
    ceiling = sum(made.ceiling(lake, 10).value for lake in lakes) / len(lakes)
    assert sum(wins) / len(wins) == pytest.approx(ceiling, abs=0.045)


def test_thoughts_tell_the_plan(tmp_path):
    env = Env(name="sokoban", think=True)
    generate(Order(env, 5, 0, 0, thoughts=True), tmp_path)
    for row in rows(tmp_path / "train.jsonl"):
        first = next(m["content"] for m in row["messages"] if m["role"] == "assistant")
        assert first.startswith("<think>The shortest way from here: ")
        assert first.count(",") == row["plan_length"] - 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, r"10 distinct sft instances were asked for, but only \d were found"),
        ({"workers": 0}, "--workers must be at least 1, not 0"),
        ({"thoughts": True}, "--thoughts needs"),
        ({"form": "csv"}, "--format csv: there are jsonl, parquet"),
        ({"curriculum": "up"}, "--curriculum up: there are none, sorted"),
    ],
)
def test_what_cannot_be_generated_is_an_error_and_leaves_no_finished_file(changed, message, tmp_path):
    workers = changed.pop("workers", 1)
    with pytest.raises(ConfigError, match=message):
        generate(Order(Env(name="frozenlake", size=2), 10, 0, 0, **changed), tmp_path, workers)
    assert not list(tmp_path.iterdir())
