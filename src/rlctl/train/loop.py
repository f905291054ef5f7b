"""The trainer's main loop.

    start   load (run_dir/sft/model, or model_dir, or the latest checkpoint) -> publish -> settle old leases -> evaluate
    step    rank 0:  fetch --> shape --+            +--> plan --+                        +--> row in metrics/train.jsonl
                     (leases)          |            |           |                        |
            all:                     measure (reference, ...)  scatter --> optimizer steps |
            all:     copy (if due) --> publish vN --> version to pool --> hold leases --> evaluate (if due)
            thread:    '--> checkpoint on disk --> leases acknowledged at the end of that step or a later one
    end     end of the run to the pool (what it still holds expires) -> train_result.json

Why this order. A batch is fetched under a lease; until it is acknowledged it comes back when the trainer dies. It is
acknowledged when a checkpoint on disk contains it, and held until then: so every sample counts once in the weights that
survive, whatever `ckpt.every` is. Training does not wait for the disk, except at the end and where the next checkpoint
is due before the last one is written.

- Killed before the checkpoint: nothing durable happened. The next trainer goes back to the last checkpoint, gives all
  leases back and learns from them again, in the same order. Versions published since are published anew.
- Killed after the checkpoint, before the acknowledgement: the checkpoint names the leases since the one before, with
  their outcomes; the resumed trainer publishes its version again and acknowledges again (both idempotent) before it
  fetches. Nothing is used twice.
- Publishing before `SetPolicyVersion`: the pool never hears of a version that some engine does not serve.
- Without checkpoints (`ckpt.every = 0`) nothing survives a kill but the books: every batch is acknowledged at once.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rlctl.config import Config
from rlctl.disk import files, folders
from rlctl.errors import ConfigError
from rlctl.telemetry.metrics import Metrics, read
from rlctl.telemetry.phases import Phases
from rlctl.telemetry.process import announce
from rlctl.train.data.batches import minibatches
from rlctl.train.data.source import BatchSource, open_source
from rlctl.train.gather import Gathered, gather
from rlctl.train.learning.companions import Companions
from rlctl.train.learning.learner import Learner, Plan, plan_for
from rlctl.train.learning.optim import Extras
from rlctl.train.model.policy import start_path
from rlctl.train.model.tree_models import settle
from rlctl.train.monitor import report
from rlctl.train.monitor.effort import flops_of, peak_memory_mb
from rlctl.train.monitor.evaluation import Evaluator
from rlctl.train.monitor.watch import Watch
from rlctl.train.objective.losses import policy_loss
from rlctl.train.objective.shaping import Shaped
from rlctl.train.ranks import Ranks
from rlctl.train.start import start
from rlctl.train.weights import base, checkpoint, keep, publish
from rlctl.train.weights.checkpoint import Checkpoints, State
from rlctl.train.weights.outgoing import Outgoing
from rlctl.train.weights.states import Trained

log = logging.getLogger(__name__)


def main(config: Config) -> None:
    """`rlctl train`: under torchrun with several processes, or alone."""
    start("train", config, lambda ranks, stall: Run(config, ranks, stall.moved).to_the_end())


class Run:
    """One training run on one rank; only rank 0 talks to pool, engines and rollout."""

    def __init__(self, config: Config, ranks: Ranks, moved: Callable[[], None] = lambda: None) -> None:
        """`moved` is called after every training step."""
        _check(config)
        self.moved = moved
        config = settle(config, ranks.device)
        self.config, self.ranks = config, ranks
        folder = config.run_dir / "checkpoints"
        resumed = checkpoint.latest(folder)
        self.state = checkpoint.read_state(resumed) if resumed else State(entropy_bonus=config.algo.entropy_bonus)
        self.updates_per_step = config.train.epochs * config.train.minibatches
        total = config.run.steps * self.updates_per_step
        self.learner = Learner(config, config.train.optim, start_path(config), total, ranks)
        self.companions = Companions(config, self.learner.policy, start_path(config), total, ranks)
        policy, tokenizer = self.learner.policy, self.learner.tokenizer
        self.base = base.base_of(policy, config, start_path(config), ranks)
        self.checkpoints = Checkpoints(folder, tokenizer, ranks)
        if resumed:
            if self.base:
                base.check(resumed / "adapter", policy, self.base)
            self.checkpoints.restore(resumed, self.students(), self.companions.others())
            log.info("resumed from %s, policy version %d", resumed, self.state.version)
        self.phases = Phases(time.process_time)
        self.source: BatchSource | None = open_source(config, self.state.batches) if ranks.first else None
        measures = ranks.first and config.eval and not config.train.replay
        self.evaluator = Evaluator(config, self.state.step) if measures else None
        self.watch = Watch(config, self.state.step) if ranks.first else None
        self.metrics = Metrics(config.run_dir if ranks.first else None, "train")
        self.layers = Metrics(config.run_dir if ranks.first and config.monitor.layer_grad_norms else None, "grad_norms")

    def to_the_end(self) -> None:
        """All training steps, from where the run stands."""
        self.publish(self.outgoing())
        if self.source:
            self.source.begin(self.state.leases, self.state.outcomes)
            self.state = replace(self.state, leases=[], outcomes={})
        if self.ranks.first:
            announce(self.config.run_dir, "train", "")
        self.evaluate()
        try:
            while self.state.step < self.config.run.steps:
                self.step()
        finally:
            self.checkpoints.close()
        self.confirm(wait=True)
        if self.ranks.first:
            self.finish()

    def step(self) -> None:
        """One batch: learn from it, make it durable, publish, acknowledge, measure."""
        number = self.state.step
        gathered = self.gather() if self.ranks.first else Gathered()
        shaped = gathered.shaped
        with self.phases("measure"):
            tabled = bool(self.config.monitor.mismatch_every) and number % self.config.monitor.mismatch_every == 0
            samples = self.companions.finish(shaped.samples, self.state.version, tabled)
            if tabled and self.watch:
                self.watch.table(number + 1, samples)
                samples = self.companions.rid_of_table(samples)
            shaped = replace(shaped, samples=samples)
        plan: Plan = self.ranks.scatter(self.plans(shaped) if self.ranks.first else None)
        with self.phases("train"):
            values = self.companions.learn(plan, number * self.updates_per_step)
            updates = self.learn(plan)
        row: dict[str, Any] = report.batch_metrics(shaped, self.state.version) if self.ranks.first else {}
        due = (number + 1) % self.config.sync.every == 0 or number + 1 == self.config.run.steps
        self.state = replace(
            self.state,
            step=number + 1,
            version=self.state.version + due,
            leases=self.state.leases + gathered.leases,
            outcomes=self.state.outcomes | shaped.outcomes,
            batches=self.state.batches + gathered.batches,
            entropy_bonus=self.next_bonus(updates),
        )
        if self.companions.reference:
            self.companions.reference.follow(number + 1)
        outgoing = self.outgoing()
        with self.phases("checkpoint"):
            self.save_if_due(outgoing)
        if due:
            self.publish(outgoing)
        if self.source:
            self.settle(self.source, gathered)
            row |= report.update_metrics(updates) | report.critic_metrics(values)
            row |= self.effort(shaped, row.get("tokens", 0), bool(updates))
            for norms in report.layer_norms(updates):
                self.layers.write(step=number + 1, **norms)
        self.evaluate()
        if self.ranks.first:
            row = {"step": number + 1, "policy_version": self.state.version, **row}
            self.metrics.write(**row, **self.phases.take())
            self.say(row)
        if self.watch:
            self.watch.step(row)
        self.moved()

    def gather(self) -> Gathered:
        """Rank 0: the next batches and what they become."""
        assert self.source is not None
        gathered = gather(self.source, self.config, self.phases)
        if not gathered.shaped.samples:
            log.warning(
                "step %d: no sample carries a signal (%s); weights stay as they are",
                self.state.step + 1,
                gathered.shaped.counts(),
            )
        return gathered

    def plans(self, shaped: Shaped) -> list[Plan]:
        """Rank 0: every rank's optimizer steps; none without signal."""
        config, parts = self.config, []
        with self.phases("build"):
            for epoch in range(config.train.epochs if shaped.samples else 0):
                seed = (config.run.seed, self.state.step, epoch)
                parts += minibatches(shaped.samples, config.train.minibatches, seed)
            return plan_for(parts, config, self.ranks.layout.data, config.algo.aggregation)

    def learn(self, plan: Plan) -> list[dict[str, float]]:
        """The policy's optimizer steps; none while only the critic learns."""
        algo, number, bonus = self.config.algo, self.state.step, self.state.entropy_bonus
        if self.companions.critic and number < self.config.critic.warmup_steps:
            return []
        exact = algo.kl.coef > 0 and algo.kl.kind == "full"
        extras = Extras(
            entropy="grad" if bonus else "value",
            reference=self.companions.reference.logits if exact and self.companions.reference else None,
            veto=self.veto if algo.early_stop_ratio else None,
            layers=self.config.monitor.layer_grad_norms,
        )
        loss = partial(policy_loss, algo=algo, bonus=bonus)
        return self.learner.run(plan, loss, number * self.updates_per_step, extras)

    def veto(self, sums: dict[str, float]) -> bool:
        """Whether the mean ratio of the whole minibatch is above `algo.early_stop_ratio`, on every rank."""
        total = self.ranks.add_up({name: sums.get(name, 0.0) for name in ("ratio", "tokens")})
        mean = total["ratio"] / max(1.0, total["tokens"])
        return bool(self.ranks.broadcast(mean > self.config.algo.early_stop_ratio))

    def next_bonus(self, updates: list[dict[str, float]]) -> float:
        """The entropy bonus of the next step, the same on every rank."""
        algo, bonus = self.config.algo, self.state.entropy_bonus
        if algo.entropy_target is None:
            return algo.entropy_bonus
        entropy = report.update_metrics(updates).get("entropy") if self.ranks.first else None
        entropy = self.ranks.broadcast(entropy)
        if entropy is None:
            return bonus
        moved = bonus + (algo.entropy_step if entropy < algo.entropy_target else -algo.entropy_step)
        return min(max(moved, 0.0), algo.entropy_bonus_max)

    def effort(self, shaped: Shaped, tokens: float, updated: bool) -> dict[str, float]:
        """Speed of the optimizer steps and memory, on rank 0 (the critic's work is in the time, not in the numbers)."""
        seconds = max(1e-9, self.phases.wall["train"])
        work = flops_of(shaped.samples, self.learner.policy, self.config.train.epochs) if updated else 0.0
        row = {
            "tokens_per_s": tokens / seconds,
            "tflops_per_s": work / seconds / 1e12,
            "peak_memory_mb": peak_memory_mb(),
        }
        if self.config.monitor.peak_tflops:
            row["mfu"] = row["tflops_per_s"] / self.config.monitor.peak_tflops
        return row

    def outgoing(self) -> Outgoing:
        """The present weights, for whoever writes them before they change."""
        return Outgoing(self.learner.policy, self.config.model.dtype, self.ranks, self.base)

    def publish(self, outgoing: Outgoing) -> None:
        """The present weights to every engine, then the version to the pool."""
        config, version = self.config, self.state.version
        with self.phases("publish"):
            if config.engine.urls:
                folder = config.run_dir / "weights" / f"v{version}"
                checksum = publish.write(outgoing, folder, version, whole=config.sync.lora == "merged")
                if self.ranks.first:
                    publish.deliver(config.engine.urls, version, folder, checksum, config.sync)
                    folders.prune(folder.parent, "v", config.sync.keep, spare=folder.name)
            if self.source:
                self.source.set_version(version)

    def settle(self, source: BatchSource, gathered: Gathered) -> None:
        """Hold the batch until a checkpoint on disk contains it; acknowledge what one does by now."""
        last = self.state.step == self.config.run.steps
        if not self.config.ckpt.every and not last:
            source.ack(self.state.leases, self.state.outcomes)
            self.state = replace(self.state, leases=[], outcomes={})
            return
        if not last:
            source.hold(gathered.leases, gathered.shaped.outcomes)
        self.confirm(wait=last)

    def confirm(self, wait: bool) -> None:
        """Acknowledge what a checkpoint has made durable since, and delete those that it replaces."""
        state = self.checkpoints.finished(wait)
        if state is None:
            return
        if self.source:
            self.source.ack(state.leases, state.outcomes)
        self.tidy()

    def tidy(self) -> None:
        """Rank 0, while none is being written: name the best checkpoint, delete what need not stay."""
        if self.ranks.first:
            rows = read(self.config.run_dir / "metrics" / "eval.jsonl")
            keep.tidy(self.checkpoints.root, self.config.ckpt, rows)

    @property
    def save_due(self) -> bool:
        """Whether a checkpoint follows the present step."""
        every, step = self.config.ckpt.every, self.state.step
        return step == self.config.run.steps or bool(every and step % every == 0)

    def save_if_due(self, outgoing: Outgoing) -> None:
        """Begin a checkpoint; its batches are then its own, and acknowledged when it is on disk."""
        if not self.save_due:
            return
        self.confirm(wait=True)
        last = self.state.step == self.config.run.steps
        merged = self.config.ckpt.merged == "every" or (self.config.ckpt.merged == "last" and last)
        self.checkpoints.begin(self.state, self.students(), self.companions.others(), outgoing, merged)
        self.state = replace(self.state, leases=[], outcomes={})

    def students(self) -> dict[str, Trained]:
        return {"policy": (self.learner.policy, self.learner.optimizer), **self.companions.students()}

    def evaluate(self) -> None:
        if self.evaluator:
            with self.phases("eval"):
                self.evaluator.measure(self.state.step)
            if not self.checkpoints.writing:
                self.tidy()

    def say(self, row: dict[str, Any]) -> None:
        log.info(
            "step %d/%d: reward %.3f, success %.3f, loss %.4g, %d tokens, version %d",
            row["step"],
            self.config.run.steps,
            row.get("reward_mean", float("nan")),
            row.get("success", float("nan")),
            row.get("loss", float("nan")),
            row.get("tokens", 0),
            self.state.version,
        )

    def finish(self) -> None:
        """Close the pool's books; then what the supervisor reads: where the result is."""
        if self.source:
            self.source.end()
        result = {
            "steps": self.state.step,
            "policy_version": self.state.version,
            "checkpoint": f"checkpoints/step_{self.state.step}",
        }
        files.write_text(self.config.run_dir / "train_result.json", json.dumps(result), durable=True)
        announce(self.config.run_dir, "train", "", state="finished")
        log.info("finished: %s", result)


def _check(config: Config) -> None:
    """Contradictions that only the trainer can see."""
    problems = []
    if not config.engine.urls and not config.train.replay:
        problems.append("engine.urls is empty: the trainer has no engine to publish to (`rlctl up` fills it)")
    if config.rollout.top_p < 1:
        problems.append(
            f"rollout.top_p = {config.rollout.top_p:g}: the engine's log-probabilities would be of a cut "
            "distribution, the trainer's of the whole one; train with top_p = 1"
        )
    if problems:
        raise ConfigError(problems)
