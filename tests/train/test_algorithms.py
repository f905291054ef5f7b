"""Whole training steps of the algorithms that need more than rewards, on recorded batches."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from rlctl.config import Config
from rlctl.telemetry.metrics import read
from rlctl.telemetry.phases import Phases
from rlctl.train.gather import gather
from rlctl.train.learning.measure import measure
from rlctl.train.loop import Run
from rlctl.train.model.policy import load
from rlctl.train.model.reference import Reference
from rlctl.train.objective.shaping import shape
from rlctl.train.ranks import Ranks
from rlctl.wire.messages import Batch

from .conftest import config_for, random_batch
from .running import facts, final_weights, finished, record, replay, run, torchrun

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"algo": {"advantage": "gae", "lam": 0.95, "whiten": True}, "critic": {"optim": {"lr": 1e-3}}},
    "bi-level": {"algo": {"advantage": "bi_level_gae", "turn_gamma": 0.95}, "critic": {"huber": 1.0}},
    "reinforce++": {"algo": {"advantage": "reinforce_pp", "kl": {"coef": 0.01, "place": "reward", "kind": "k1"}}},
    "reinforce++ baseline": {"algo": {"advantage": "reinforce_pp_baseline"}},
    "decoupled": {"algo": {"old": "recompute", "correction": {"level": "token", "mode": "mask", "cap": 1e9}}},
    "gspo with a moving reference": {
        "algo": {"loss": "gspo", "kl": {"coef": 0.1, "kind": "full"}},
        "reference": {"update_every": 2},
    },
    "dapo": {"algo": {"dynamic_sampling": 2, "entropy_target": 9.0, "entropy_bonus": 0.001}},
    "interpolated": {"algo": {"old": "interpolate", "correction": {"level": "geometric"}, "loss": "cispo"}},
}


def sections(name: str, **more: Any) -> dict[str, Any]:
    return {**ALGORITHMS[name], **more}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded") / "batches", 12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_is_the_run_to_the_last_bit_with_every_companion(
    name: str, model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    straight = replay(model_dir, tmp_path / "straight", recorded, 4, **sections(name))
    rows = run(straight)
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert all(row["grad_norm"] > 0 for row in rows if row["tokens"])
    halves = replay(model_dir, tmp_path / "halves", recorded, 4, **sections(name))
    first = Run(halves, Ranks(halves))
    while first.state.step < 3:
        first.step()
    first.checkpoints.close()
    assert facts(rows) == facts(run(halves))
    one, other = final_weights(straight, 4), final_weights(halves, 4)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "reinforce++", "gspo with a moving reference", "decoupled"])
def test_one_and_two_processes_learn_the_same(name: str, model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    rows = {}
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        finished(torchrun(replay(model_dir, folder, recorded, 3, **sections(name)), folder, processes))
        rows[processes] = list(read(folder / "metrics" / "train.jsonl"))
    for one, two in zip(rows[1], rows[2], strict=True):
        for key in ("loss", "value_loss", "explained_variance", "kl_reference", "entropy"):
            assert two.get(key, 0.0) == pytest.approx(one.get(key, 0.0), rel=1e-4, abs=1e-6), key


def test_the_critic_learns_alone_during_its_warm_up(model_dir: Path, tmp_path: Path, recorded: Path) -> None:
    settings = {"algo": {"advantage": "gae"}, "critic": {"warmup_steps": 2, "optim": {"lr": 1e-2}}}
    rows = run(replay(model_dir, tmp_path, recorded, 3, **settings))
    assert [row["updates"] for row in rows] == [0, 0, 4]
    assert rows[0]["explained_variance"] == pytest.approx(0, abs=1e-5), "values are 0 before the first update"
    assert all(row["critic_grad_norm"] > 0 for row in rows)


def test_an_update_beyond_the_ratio_limit_is_not_made_nor_those_after_it(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    # The behaviour log-probabilities of the recording are random: the mean ratio is far from 1 at once.
    config = replay(model_dir, tmp_path, recorded, 1, algo={"early_stop_ratio": 0.01})
    before = Run(config, Ranks(config)).learner.policy.state_dict()
    (row,) = run(config)
    assert (row["updates"], row["vetoed_updates"]) == (1, 1)
    after = final_weights(config, 1)
    assert all(torch.equal(before[f"lm.{name}"], value) for name, value in after.items())
    free = replay(model_dir, tmp_path / "free", recorded, 1, algo={"early_stop_ratio": 1e9})
    assert "vetoed_updates" not in run(free)[0] and run(free) != []


def test_the_entropy_bonus_rises_below_the_target_and_falls_above_it(
    model_dir: Path, tmp_path: Path, recorded: Path
) -> None:
    def bonus(target: float) -> float:
        algo = {"entropy_target": target, "entropy_bonus": 0.01, "entropy_step": 0.004, "entropy_bonus_max": 0.013}
        config = replay(model_dir, tmp_path / f"{target}", recorded, 3, algo=algo)
        made = Run(config, Ranks(config))
        made.step()
        return made.state.entropy_bonus

    assert bonus(100.0) == pytest.approx(0.013), "the upper bound"
    assert bonus(0.0) == pytest.approx(0.006)


def test_the_reference_follows_the_policy_when_it_is_due(model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, algo={"kl": {"coef": 0.1}}, reference={"update_every": 2})
    policy = load(str(model_dir), config, Ranks(config))
    reference = Reference(config, policy, str(model_dir), Ranks(config))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)
    micro = micro_of(config)
    reference.follow(1)
    assert not torch.allclose(reference.logprobs([micro])[0], policy(micro).logprobs)
    reference.follow(2)
    assert torch.equal(reference.logprobs([micro])[0], policy(micro).logprobs)


def test_under_lora_the_reference_is_the_base_and_costs_no_copy(model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, algo={"kl": {"coef": 0.1}}, train={"lora": {"rank": 4}})
    policy = load(str(model_dir), config, Ranks(config))
    base = load(str(model_dir), config_for(model_dir, tmp_path), Ranks(config))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    reference, micro = Reference(config, policy, str(model_dir), Ranks(config)), micro_of(config)
    assert reference.shares_weights
    assert torch.allclose(reference.logprobs([micro])[0], base(micro).logprobs, atol=1e-5)
    assert not torch.allclose(policy(micro).logprobs, base(micro).logprobs, atol=1e-2), "the adapters are on again"
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)


def micro_of(config: Config) -> Any:
    from rlctl.train.learning.learner import plan_for

    samples = shape(random_batch(0).groups, config.algo, 256).samples
    return plan_for([samples], config, 1, "token_mean")[0][0].micros[0]


def test_what_is_measured_comes_back_to_its_own_token(model_dir: Path, tmp_path: Path) -> None:
    from rlctl.train.learning.learner import plan_for

    config = config_for(model_dir, tmp_path)
    samples = shape(random_batch(0).groups, config.algo, 256).samples
    plans = plan_for([samples], config, 1, "token_mean")
    ask = {"double": lambda micros: [torch.from_numpy(micro.targets).float() * 2 for micro in micros]}
    for sample in measure(samples, plans, ask, Ranks(config)):
        assert sample.columns["double"].tolist() == (sample.token_ids[sample.places] * 2.0).tolist()


class Source:
    """Batches by hand; remembers what it was asked and told."""

    def __init__(self, *batches: Batch) -> None:
        self.batches, self.asked, self.acked = list(batches), [], []

    def begin(self, leases: Any, outcomes: Any) -> None:
        raise AssertionError("not at the start")

    def fetch(self, groups: int) -> Batch:
        self.asked.append(groups)
        return self.batches.pop(0)

    def ack(self, leases: Any, outcomes: dict[str, str]) -> None:
        self.acked.append((list(leases), outcomes))

    def set_version(self, version: int) -> None:
        raise AssertionError("not here")


def batch_of(seed: int, *signal: bool) -> Batch:
    """One group per flag: with both rewards, or with none but 1."""
    batch = random_batch(seed, groups=len(signal), size=2)
    groups = []
    for group, lively in zip(batch.groups, signal, strict=True):
        first, second = group.trajectories
        members = [msgspec.structs.replace(t, reward=r) for t, r in ((first, 1.0), (second, 0.0 if lively else 1.0))]
        groups.append(msgspec.structs.replace(group, trajectories=members))
    return msgspec.structs.replace(batch, groups=groups)


def test_dynamic_sampling_fetches_what_is_missing_and_settles_flat_groups_at_once(
    model_dir: Path, tmp_path: Path
) -> None:
    source = Source(batch_of(1, True, False, True, False), batch_of(2, False, True), batch_of(3, True))
    config = config_for(model_dir, tmp_path, algo={"dynamic_sampling": 5})
    gathered = gather(source, config, Phases())
    assert source.asked == [4, 2, 1]
    assert gathered.leases == ["lease-1", "lease-2", "lease-3"] and gathered.batches == 3
    assert len({s.group for s in gathered.shaped.samples}) == 4
    assert [leases for leases, _ in source.acked] == [[], []], "no lease is given up for the flat groups"
    assert [sorted(outcomes.values()) for _, outcomes in source.acked] == [["zero_variance"] * 4, ["zero_variance"] * 2]
    assert gathered.shaped.counts() == {"trained": 8, "zero_variance": 6}
    assert (gathered.shaped.groups, gathered.shaped.flat_groups) == (7, 3)


def test_dynamic_sampling_goes_on_with_what_there_is_after_so_many_fetches(model_dir: Path, tmp_path: Path) -> None:
    source = Source(batch_of(1, True, False), batch_of(2, False))
    gathered = gather(source, config_for(model_dir, tmp_path, algo={"dynamic_sampling": 2}), Phases())
    assert gathered.batches == 2 and len({s.group for s in gathered.shaped.samples}) == 1


def test_without_dynamic_sampling_there_is_one_fetch(model_dir: Path, tmp_path: Path) -> None:
    source = Source(batch_of(1, False, False))
    gathered = gather(source, config_for(model_dir, tmp_path), Phases())
    assert (gathered.batches, gathered.shaped.samples, source.acked) == (1, [], [])
