"""The supervised warm start, stopped at a measured success rate.

run_dir/sft/train.jsonl (or sft.data.path)
     |
     v
batch --> encode --> plan --> optimizer step --+--> row in metrics/sft.jsonl
  ^                                            |
  |    every sft.check_every steps:  trial weights to the engines as version 0 --> Evaluate(split = train)
  +-------------- below sft.stop_success --------------------+
                                                             | reached
                                                             v
                                                      run_dir/sft/model   (RL starts from it)
"""

import logging
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from rlctl.config import Config
from rlctl.disk import folders
from rlctl.errors import ConfigError, RlctlError
from rlctl.telemetry.metrics import Metrics
from rlctl.telemetry.phases import Phases
from rlctl.telemetry.process import announce
from rlctl.train.data import demonstrations
from rlctl.train.data.demonstrations import Writing
from rlctl.train.data.samples import TrainSample
from rlctl.train.learning.learner import Learner, Plan, plan_for
from rlctl.train.learning.optim import Extras
from rlctl.train.model.tree_models import settle
from rlctl.train.objective.losses import nll
from rlctl.train.objective.tokens import Sums, Tokens
from rlctl.train.ranks import Ranks
from rlctl.train.start import start
from rlctl.train.weights import publish
from rlctl.train.weights.base import base_of
from rlctl.train.weights.outgoing import Outgoing
from rlctl.wire.messages import Evaluate, Evaluated
from rlctl.wire.sockets import AskBlocking

log = logging.getLogger(__name__)


def main(config: Config) -> None:
    """`rlctl sft`: under torchrun with several processes, or alone."""
    start("sft", config, lambda ranks, stall: WarmStart(config, ranks, stall.moved).to_the_end())


class WarmStart:
    """Supervised training on one rank; only rank 0 reads data and talks to engines and rollout."""

    def __init__(self, config: Config, ranks: Ranks, moved: Callable[[], None] = lambda: None) -> None:
        """`moved` is called after every optimizer step."""
        _check(config)
        self.moved = moved
        config = settle(config, ranks.device)
        self.config, self.ranks, self.settings = config, ranks, config.sft
        self.folder = config.run_dir / "sft"
        self.phases = Phases(time.process_time)
        self.metrics = Metrics(config.run_dir if ranks.first else None, "sft")
        self.rows: list[list[demonstrations.Message] | demonstrations.Recorded] = []
        if ranks.first:
            path = self.settings.data.path
            self.rows = demonstrations.read(Path(path) if path else self.folder / "train.jsonl")

    def to_the_end(self) -> None:
        """Train until the success rate is reached; RlctlError when `sft.max_steps` were not enough."""
        if (self.folder / "model" / "config.json").exists():
            log.info("%s is there already; nothing to do", self.folder / "model")
            return
        settings = self.settings
        self.learner = Learner(self.config, settings.optim, self.config.model_dir, settings.max_steps, self.ranks)
        self.base = base_of(self.learner.policy, self.config, self.config.model_dir, self.ranks)
        self.writing = writing_of(self.learner.tokenizer)
        if self.ranks.first:
            announce(self.config.run_dir, "sft", "")
        reached = settings.stop_success is None
        for step in range(1, settings.max_steps + 1):
            self.step(step)
            if settings.stop_success is not None and (step % settings.check_every == 0 or step == settings.max_steps):
                rate = self.measure(step)
                if reached := rate >= settings.stop_success:
                    break
        if not reached:
            raise RlctlError(
                f"the warm start reached {rate:.3f} success in sft.max_steps = {settings.max_steps} steps, not "
                f"sft.stop_success = {settings.stop_success:g}; allow more steps or lower the bar"
            )
        self.save()
        if self.ranks.first:
            announce(self.config.run_dir, "sft", "", state="finished")

    def step(self, step: int) -> None:
        """One optimizer step on `sft.batch` demonstrations."""
        with self.phases("build"):
            plans = self.plan(step - 1) if self.ranks.first else None
        with self.phases("train"):
            (row,) = self.learner.run(self.ranks.scatter(plans), _loss, step - 1, Extras(entropy=""))
        if self.ranks.first:
            loss = row["loss"] / row["divisor"]
            self.metrics.write(
                step=step,
                loss=loss,
                tokens=int(row["tokens"]),
                grad_norm=row["grad_norm"],
                lr=row["lr"],
                skipped_updates=int(row["skipped"]),
                **self.phases.take(),
            )
        self.moved()

    def plan(self, step: int) -> list[Plan]:
        """Every rank's share of the demonstrations of `step` (from 0)."""
        count, batch = len(self.rows), self.settings.batch
        picks = (
            demonstrations.shuffled(count, batch, step, self.config.run.seed)
            if self.settings.data.shuffle
            else demonstrations.in_order(count, batch, step)
        )
        samples = [sample for i, pick in enumerate(picks) for sample in self.encoded(f"{i}", pick)]
        return plan_for([samples], self.config, self.ranks.layout.data, "token_mean")

    def encoded(self, uid: str, pick: int) -> list[TrainSample]:
        """One demonstration; ConfigError when it cannot be trained on as it is."""
        try:
            samples = demonstrations.samples_of(uid, self.rows[pick], self.writing)
        except ValueError as error:
            raise ConfigError(f"demonstration {pick + 1}: {error}") from error
        if (longest := max(map(len, samples))) > self.config.model.max_context:
            raise ConfigError(
                f"demonstration {pick + 1} has {longest} tokens, more than model.max_context = "
                f"{self.config.model.max_context}; raise it or make shorter ones"
            )
        return samples

    def measure(self, step: int) -> float:
        """Success of the present weights on training instances at rollout.temperature, on every rank."""
        with self.phases("publish"):
            folder = self.folder / "trial" / f"v{step}"
            checksum = publish.write(self.outgoing(), folder, 0, whole=self.config.sync.lora == "merged")
            if self.ranks.first:
                publish.deliver(self.config.engine.urls, 0, folder, checksum, self.config.sync)
                folders.prune(folder.parent, "v", self.config.sync.keep, spare=folder.name)
        with self.phases("eval"):
            return float(self.ranks.broadcast(self.success(step) if self.ranks.first else None))

    def success(self, step: int) -> float:
        config, settings = self.config, self.settings
        ask = AskBlocking(config.rollout_url)
        request = Evaluate(
            step=step, name=eval_name(config), episodes=settings.check_episodes, split="train", run=f"sft-{step}"
        )
        try:
            reply: Evaluated = ask.ask(request, timeout_s=config.monitor.watchdog_s)
        finally:
            ask.close()
        result = next((r for r in reply.results if r.temperature == config.rollout.temperature), None)
        if result is None:
            raise RlctlError(f"rollout measured nothing at rollout.temperature = {config.rollout.temperature:g}")
        self.metrics.write(
            step=step, success=result.success_rate, success_se=result.success_se, episodes=result.episodes
        )
        log.info("step %d: success %.3f ± %.3f on training instances", step, result.success_rate, result.success_se)
        return result.success_rate

    def outgoing(self) -> Outgoing:
        """The present weights, for whoever writes them before they change."""
        return Outgoing(self.learner.policy, self.config.model.dtype, self.ranks, self.base)

    def save(self) -> None:
        """The model that RL starts from: a Hugging Face folder with its tokenizer."""
        outgoing = self.outgoing()
        weights = outgoing.whole
        if not self.ranks.first:
            return

        def fill(temporary: Path) -> None:
            outgoing.save_whole(weights, temporary)
            self.learner.tokenizer.save_pretrained(temporary)

        folders.write_whole(self.folder / "model", fill)


def writing_of(tokenizer: Any) -> Writing:
    """A transformers tokenizer as demonstrations use it."""
    end = tokenizer.eos_token

    @lru_cache(maxsize=65536)
    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def render(messages: Any, generate: bool) -> str:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generate))

    return Writing(render, encode, end, tokenizer.eos_token_id)


def eval_name(config: Config) -> str:
    """The first [[eval]] that is measured at rollout.temperature."""
    return next((one.name for one in config.eval if one.temperature == config.rollout.temperature), "")


def _loss(logprobs: torch.Tensor, entropies: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, Sums]:
    return nll(logprobs, tokens)


def _check(config: Config) -> None:
    settings, problems = config.sft, []
    if not settings.max_steps:
        problems.append("sft.max_steps = 0: no warm start is configured")
    if settings.stop_success is not None and not config.engine.urls:
        problems.append("engine.urls is empty: sft.stop_success is measured with the engines (`rlctl up` starts them)")
    if settings.stop_success is not None and not eval_name(config):
        problems.append("sft.stop_success needs an [[eval]] at rollout.temperature, which it is measured with")
    if problems:
        raise ConfigError(problems)
