import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from rlctl.config import Config
from rlctl.config.algorithm import Algo
from rlctl.config.learning import Optim
from rlctl.errors import ConfigError
from rlctl.train.data.batches import MicroBatch, Minibatch, grid
from rlctl.train.data.samples import Call, TrainSample
from rlctl.train.learning import optim
from rlctl.train.learning.learner import plan_for
from rlctl.train.learning.optim import Extras, Schedule
from rlctl.train.model import critic
from rlctl.train.model.policy import LOGITS, Policy, load, load_frozen, tokens_of
from rlctl.train.model.tree_models import settle
from rlctl.train.objective.losses import policy_loss, value_loss
from rlctl.train.objective.shaping import shape
from rlctl.train.ranks import Ranks
from rlctl.train.weights.export import export
from rlctl.train.weights.outgoing import save_hf

from .conftest import config_for, random_batch


@pytest.fixture
def policy(model_dir: Path, tmp_path: Path) -> Policy:
    config = config_for(model_dir, tmp_path)
    return load(str(model_dir), config, Ranks(config))


def loaded(model_dir: Path, tmp_path: Path, **train: Any) -> tuple[Policy, Config]:
    config = config_for(model_dir, tmp_path, train=train)
    return load(str(model_dir), config, Ranks(config)), config


def samples(seed: int = 0) -> list[TrainSample]:
    return shape(random_batch(seed, share=35).groups, Algo(), 256).samples


def loss_and_gradient(policy: Policy, minibatch: Minibatch, algo: Algo) -> tuple[float, torch.Tensor]:
    total = 0.0
    for micro in minibatch.micros:
        logprobs, entropies, _ = policy(micro, "grad")
        value, _ = policy_loss(logprobs, entropies, tokens_of(micro, logprobs.device), algo)
        (value / minibatch.divisor).backward()
        total += value.item() / minibatch.divisor
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    policy.zero_grad()
    return total, gradient


def test_only_the_rows_of_trainable_tokens_reach_the_output_layer(policy: Policy) -> None:
    micro = grid(samples(), 1, 10_000, "token_mean")[0].micros[0]
    shapes = []
    handle = policy.lm.get_output_embeddings().register_forward_hook(lambda m, i, o: shapes.append(o.shape))
    logprobs, entropies, _ = policy(micro)
    handle.remove()
    assert shapes[0][:2] == (1, len(micro.targets))
    logits = policy.lm(torch.from_numpy(micro.token_ids), use_cache=False).logits
    rows = logits.flatten(0, 1)[torch.from_numpy(micro.sources)]
    reference = torch.distributions.Categorical(logits=rows)
    assert torch.allclose(logprobs, reference.log_prob(torch.from_numpy(micro.targets)), atol=1e-5)
    assert torch.allclose(entropies, reference.entropy(), atol=1e-5)


CUTS = {
    "micro-batches of 64 tokens": {"micro_tokens": 64},
    "packed rows": {"micro_tokens": 512, "row_tokens": 128},
    "one packed row": {"micro_tokens": 100_000, "row_tokens": 100_000},
    "three ranks": {"micro_tokens": 128, "ranks": 3},
    "more ranks than rows": {"micro_tokens": 128, "ranks": 40},
    "one forest": {"micro_tokens": 100_000, "tree": True},
    "forests of 128 tokens": {"micro_tokens": 128, "tree": True},
    "forests on three ranks": {"micro_tokens": 256, "tree": True, "ranks": 3},
    "more ranks than forests": {"micro_tokens": 128, "tree": True, "ranks": 40},
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
def test_loss_and_gradient_do_not_depend_on_how_the_batch_is_cut(policy: Policy, cut: str, aggregation: str) -> None:
    algo, settings = Algo(entropy_bonus=0.01, dual_clip=3.0), dict(CUTS[cut])
    whole = grid(samples(), 1, 100_000, aggregation)[0]
    loss, gradient = loss_and_gradient(policy, whole, algo)
    parts = grid(samples(), settings.pop("ranks", 1), aggregation=aggregation, **settings)
    together = Minibatch([micro for part in parts for micro in part.micros], parts[0].divisor)
    other, other_gradient = loss_and_gradient(policy, together, algo)
    assert other == pytest.approx(loss, rel=1e-5)
    assert torch.linalg.norm(other_gradient - gradient) < 1e-5 * torch.linalg.norm(gradient)


def test_activation_checkpointing_changes_nothing_but_memory(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    lean, _ = loaded(model_dir, tmp_path, memory={"activation_checkpointing": True})
    batch = grid(samples(), 1, 512, "token_mean")[0]
    (one, gradient), (other, lean_gradient) = (loss_and_gradient(p, batch, Algo()) for p in (policy, lean))
    assert one == other and torch.equal(gradient, lean_gradient)


def test_the_export_is_the_file_it_was_loaded_from(policy: Policy, model_dir: Path) -> None:
    weights, saved = export(policy, "float32", keep=True), load_file(model_dir / "model.safetensors")
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    assert export(policy, "float32", keep=False) == {}
    assert export(policy, "bfloat16", keep=True)["model.norm.weight"].dtype == torch.bfloat16


def test_lora_trains_only_adapters_and_exports_what_it_computes(model_dir: Path, tmp_path: Path) -> None:
    policy, _ = loaded(model_dir, tmp_path, lora={"rank": 4, "alpha": 8})
    trained = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    batch = grid(samples(), 1, 512, "token_mean")[0]
    optimizer = optim.adamw(policy.parameters(), Optim(lr=1e-2))
    for _ in range(3):
        update(policy, optimizer, batch)
    merged, _ = loaded(model_dir, tmp_path)
    merged.lm.load_state_dict(export(policy, "float32", keep=True), strict=False)
    micro = batch.micros[0]
    assert not torch.allclose(policy(micro)[0], loaded(model_dir, tmp_path)[0](micro)[0], atol=1e-3), "it has learnt"
    assert torch.allclose(policy(micro)[0], merged(micro)[0], atol=1e-5)
    assert set(export(policy, "float32", keep=True)) == set(load_file(model_dir / "model.safetensors"))


def test_bfloat16_computes_in_bfloat16_on_float32_weights(model_dir: Path, tmp_path: Path) -> None:
    config = config_for(model_dir, tmp_path, model={"dtype": "bfloat16"})
    ranks = Ranks(config)
    try:
        policy = load(str(model_dir), config, ranks)
        assert {p.dtype for p in policy.parameters()} == {torch.float32}
        kinds = []
        policy.lm.get_output_embeddings().register_forward_hook(lambda m, i, o: kinds.append(o.dtype))
        batch = grid(samples(), 1, 512, "token_mean")[0]
        assert update(policy, optim.adamw(policy.parameters(), Optim()), batch).grad_norm > 0
        assert set(kinds) == {torch.bfloat16}
        weights = export(policy, "bfloat16", keep=True)
        assert weights["model.embed_tokens.weight"].dtype == torch.bfloat16
    finally:
        ranks.close()


def update(policy: Policy, optimizer: torch.optim.Optimizer, batch: Minibatch, lr: float = 1e-2) -> optim.Update:
    return optim.step(policy, optimizer, batch, lambda a, b, c: policy_loss(a, b, c, Algo()), 1, lr, 1.0)


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(policy: Policy) -> None:
    batch = grid(samples(), 1, 512, "token_mean")[0]
    before = {name: value.detach().clone() for name, value in policy.named_parameters()}
    optimizer = optim.adamw(policy.parameters(), Optim())
    poison = MicroBatch(**{**batch.micros[0].__dict__, "advantages": batch.micros[0].advantages * float("nan")})
    assert update(policy, optimizer, Minibatch([poison], 1.0)).skipped
    assert all(torch.equal(before[name], value) for name, value in policy.named_parameters())
    assert not update(policy, optimizer, batch).skipped
    assert not torch.equal(before["lm.model.norm.weight"], dict(policy.named_parameters())["lm.model.norm.weight"])


def test_the_loss_falls_on_repeated_data(policy: Policy) -> None:
    batch = grid(samples(), 1, 512, "token_mean")[0]
    optimizer = optim.adamw(policy.parameters(), Optim())
    losses = [update(policy, optimizer, batch, 1e-3).sums["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_schedules_warm_up_fall_and_stop_at_the_floor() -> None:
    linear = Schedule(Optim(lr=2.0, schedule="linear", warmup_steps=2, min_lr_fraction=0.25), total=10)
    assert [linear.lr(n) for n in (0, 1, 2, 6, 10)] == pytest.approx([0.0, 1.0, 2.0, 1.0, 0.5])
    constant = Schedule(Optim(lr=2.0, warmup_steps=4), total=10)
    assert [constant.lr(n) for n in (0, 2, 4, 9)] == pytest.approx([0.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize("name", ["linearly", "reduce_lr_on_plateau"])
def test_an_unusable_schedule_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Schedule(Optim(schedule=name), total=10)


EVERY_LOSS: dict[str, dict[str, Any]] = {
    "dual clip": {"dual_clip": 1.5, "entropy_bonus": 0.01},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo"},
    "sapo": {"loss": "sapo"},
    "policy gradient": {"loss": "policy_gradient"},
    "interpolated": {"old": "interpolate", "correction": {"level": "token"}},
    **{
        f"decoupled {level}": {"old": "recompute", "correction": {"level": level, "mode": mode}}
        for level, mode in (("token", "mask"), ("sequence", "truncate"), ("geometric", "truncate"))
    },
    **{f"kl {kind}": {"kl": {"coef": 0.1, "kind": kind}} for kind in ("k1", "abs", "k2", "k3", "full")},
    "prompt mean": {"aggregation": "prompt_mean"},
    "turn mean": {"aggregation": "seq_mean_turn_mean"},
    "constant length": {"aggregation": "constant_length"},
    "value": {"advantage": "gae"},
}


def with_columns() -> list[TrainSample]:
    rng = np.random.default_rng(7)
    done = []
    for sample in samples():
        near = sample.logprobs + rng.normal(size=sample.trainable).astype(np.float32) * 0.1
        columns = {"reference": near, "proximal": near, "values": near + 5, "returns": near * 0}
        done.append(replace(sample, columns=columns))
    return done


def gradient_of(
    module: torch.nn.Module, algo: Algo, batch: list[TrainSample], cut: dict[str, Any], other: Policy
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one optimizer step on one or several ranks, played one after the other."""
    settings = dict(cut)
    parts = grid(batch, settings.pop("ranks", 1), aggregation=algo.aggregation, length=50, **settings)
    extras = Extras(entropy="grad")
    if algo.kl.coef and algo.kl.kind == "full":
        extras = Extras(entropy="grad", reference=lambda micro: other(micro, LOGITS).detach())
    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten().clone() for p in module.parameters() if p.grad is not None]))
    )
    loss = lambda a, b, t: value_loss(a, t, 0.2, 1.0) if algo.needs_critic else policy_loss(a, b, t, algo)  # noqa: E731
    together = Minibatch([micro for part in parts for micro in part.micros], parts[0].divisor)
    update = optim.step(module, optimizer, together, loss, 1, 0.0, 1e9, extras)
    return update.sums["loss"], seen[0]


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_every_loss_is_the_same_however_the_batch_is_cut(
    name: str, policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    algo = Algo(**EVERY_LOSS[name])
    batch = with_columns()
    if algo.old == "interpolate":
        batch = [replace(s, columns={"blend": np.full(s.trainable, 0.5, np.float32)}) for s in batch]
    config = config_for(model_dir, tmp_path)
    other = load_frozen(str(model_dir), config, Ranks(config))
    with torch.no_grad():
        other.lm.get_output_embeddings().weight.mul_(1.5)
    module = critic.load(config, str(model_dir), Ranks(config)) if algo.needs_critic else policy
    lean_config = config_for(
        model_dir, tmp_path, train={"memory": {"activation_checkpointing": True, "logit_chunk": 7}}
    )
    lean: torch.nn.Module = load(str(model_dir), lean_config, Ranks(config))
    if algo.needs_critic:
        torch.nn.init.normal_(module.head.weight, std=0.1)
        lean = critic.load(lean_config, str(model_dir), Ranks(config))
        lean.load_state_dict(module.state_dict())
    loss, gradient = gradient_of(module, algo, batch, {"micro_tokens": 100_000}, other)
    assert torch.linalg.norm(gradient) > 0
    forest = CUTS["one forest"]
    cuts = [cut for cut in CUTS.values() if cut.get("ranks") != 40]
    for what, cut in [*((module, cut) for cut in cuts), (lean, CUTS["packed rows"]), (lean, forest)]:
        other_loss, other_gradient = gradient_of(what, algo, batch, cut, other)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert torch.linalg.norm(other_gradient - gradient) < 1e-5 * torch.linalg.norm(gradient)


def test_a_forest_saves_what_the_samples_of_a_group_and_the_forks_of_a_trajectory_share() -> None:
    batch = samples()
    micro = grid(batch, 1, 100_000, "token_mean", tree=True)[0].micros[0]
    forks = len(batch) - len({sample.uid for sample in batch})
    assert forks > 0
    # Of a prompt of 35 tokens, 4 blocks of 8 are computed once per group; of a fork at least as many.
    prompts = {sample.token_ids[:35].tobytes() for sample in batch}
    assert len(prompts) < len({sample.uid for sample in batch})
    assert micro.area <= sum(map(len, batch)) - 32 * (len(batch) - len(prompts))


def test_a_token_that_ends_a_prefix_predicts_one_next_token_per_branch(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 300, 16)
    batch = [plain_sample(f"{i}", prompt, np.array([answer])) for i, answer in enumerate((7, 8, 9))]
    micro = grid(batch, 1, 1000, "token_mean", tree=True)[0].micros[0]
    assert micro.sources.tolist() == [15, 15, 15] and sorted(micro.targets) == [7, 8, 9]
    logits = policy.lm(torch.from_numpy(prompt)[None], use_cache=False).logits[0, -1]
    assert torch.allclose(policy(micro).logprobs, logits.log_softmax(0)[torch.from_numpy(micro.targets)], atol=1e-5)


def plain_sample(uid: str, prompt: np.ndarray, answer: np.ndarray) -> TrainSample:
    ids = np.concatenate([prompt, answer]).astype(np.int32)
    places, zeros = np.arange(len(prompt), len(ids)), np.zeros(len(answer), np.float32)
    return TrainSample(uid, ids, places, zeros, zeros, [Call(0, len(answer), 1.0, [(0, len(answer))])])


@pytest.mark.parametrize(("tree", "forests"), [("auto", True), (True, True), (False, False)])
def test_forests_are_used_where_they_are_wanted(
    tree: bool | str, forests: bool, model_dir: Path, tmp_path: Path
) -> None:
    config = config_for(model_dir, tmp_path, train={"prefix_tree": tree})
    plan = plan_for([samples()], settle(config, torch.device("cpu")), 1, "token_mean")[0]
    assert all((micro.nodes is not None) == forests for micro in plan[0].micros)


def test_auto_leaves_rows_of_one_length_that_share_nothing_as_they_are(model_dir: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = [plain_sample(f"{i}", rng.integers(0, 300, 30), rng.integers(0, 300, 2)) for i in range(8)]
    config = config_for(model_dir, tmp_path)
    assert plan_for([batch], config, 1, "token_mean")[0][0].micros[0].nodes is None


SLIDING = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "layer_types": None}


@pytest.mark.parametrize("what", ["eager", "sliding window", "GPU"])
def test_auto_does_without_forests_where_they_cannot_be_had_and_true_says_why(
    what: str, model_dir: Path, tmp_path: Path
) -> None:
    path, device = model_dir, torch.device("cuda" if what == "GPU" else "cpu")
    if what == "sliding window":
        path = tmp_path / "sliding"
        shutil.copytree(model_dir, path)
        settings = json.loads((path / "config.json").read_text()) | SLIDING
        (path / "config.json").write_text(json.dumps(settings))
    attention = "eager" if what == "eager" else "sdpa"
    auto = config_for(path, tmp_path, model={"attention": attention})
    assert settle(auto, device).train.prefix_tree is False
    wanted = config_for(path, tmp_path, model={"attention": attention}, train={"prefix_tree": True})
    if what == "GPU":
        assert settle(wanted, device).train.prefix_tree is True
        return
    with pytest.raises(ConfigError, match="eager" if what == "eager" else "sliding_attention"):
        settle(wanted, device)


def test_a_model_that_knows_no_forests_is_never_given_one(model_dir: Path, tmp_path: Path) -> None:
    plain, _ = loaded(model_dir, tmp_path, prefix_tree=False)
    micro = grid(samples(), 1, 1000, "token_mean", tree=True)[0].micros[0]
    with pytest.raises(RuntimeError, match="forest"):
        plain(micro)


def test_the_attention_of_forests_is_not_written_into_the_published_model(policy: Policy, tmp_path: Path) -> None:
    save_hf(policy, export(policy, "float32", keep=True), tmp_path, "float32")
    assert "rlctl" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("name", ["dual clip", "gspo", "kl full"])
def test_chunked_logits_give_the_same_loss_and_gradient(
    name: str, policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    lean, config = loaded(model_dir, tmp_path, memory={"logit_chunk": 7})
    other, algo, cut = (
        load_frozen(str(model_dir), config, Ranks(config)),
        Algo(**EVERY_LOSS[name]),
        {"micro_tokens": 512},
    )
    other.chunk = 0
    loss, gradient = gradient_of(policy, algo, with_columns(), cut, other)
    rows: list[int] = []
    lean.lm.get_output_embeddings().register_forward_hook(lambda m, i, o: rows.append(o.numel() // o.shape[-1]))
    chunked, chunked_gradient = gradient_of(lean, algo, with_columns(), cut, other)
    assert max(rows) <= 7 and sum(rows) > 7, "some logits were whole"
    assert chunked == pytest.approx(loss, rel=1e-5)
    assert torch.linalg.norm(chunked_gradient - gradient) < 1e-5 * torch.linalg.norm(gradient)
