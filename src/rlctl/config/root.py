"""The whole configuration: sections, derived facts, and the checks that span sections."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlctl.config.algorithm import Algo
from rlctl.config.base import Fraction, NonNegative, Positive, Seconds, Section
from rlctl.config.learning import Ckpt, Critic, Model, Reference, Sft, Sync, Train
from rlctl.config.serving import Engine, Env, Eval, Gateway, Pool, Reward, Rollout
from rlctl.config.suggest import nearest

BEST_KEYS = ("success_rate", "mean_reward")
"""What `ckpt.best_metric` may name of an evaluation."""


TRACKERS = ("tensorboard", "wandb", "swanlab")
"""Built-in values of `monitor.trackers`; each is the name of its package and of the extra that installs it, too."""


class Run(Section):
    """What this run is."""

    name: str = "run"
    seed: NonNegative = 0
    """Seeds the model, the data, the sampling order and every environment."""
    steps: Positive = 100
    """Training steps."""
    dir: str = ""
    """Run directory; empty: runs/NAME/TIMESTAMP."""


class Deploy(Section):
    """Where the processes run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    train_gpus: list[int] = []
    """GPU indices of the trainer; empty: all that the engines leave."""
    engine_gpus: list[int] = []


class Monitor(Section):
    """What is watched."""

    watchdog_s: Seconds = 1800.0
    """No training step for this long ends the run with exit code 4."""
    print_every_s: Seconds = 10.0
    """Progress line when the output is not a terminal."""
    pictures: NonNegative = 4
    """Episodes of every evaluation, and of a training group, that are kept as pictures (`pictures/`). 0: none."""
    pictures_every: NonNegative = 20
    """The first training group of every so many batches is kept as pictures. 0: only evaluations."""
    trackers: list[str] = []
    """Where curves and pictures go besides the run directory: tensorboard, wandb, swanlab or `module:Class`."""
    project: str = "rlctl"
    """What wandb and swanlab file runs under."""
    report_every_s: Seconds = 60.0
    """Between two versions of report.html while the run goes on."""
    peak_tflops: float = Field(default=0.0, ge=0)
    """What all devices of the trainer can do, in 10^12 operations per second: metrics then have `mfu`."""
    layer_grad_norms: bool = False
    """Norm of every layer's gradient before clipping, a row per layer and training step in metrics/grad_norms.jsonl."""
    mismatch_alarm: float = Field(default=0.0, ge=0)
    """Mean |log-probability of the trainer - of the engine| before an update that is worth a warning; 0: off."""
    mismatch_every: NonNegative = 0
    """Training steps between tables of that difference by environment, turn and position (metrics/mismatch.jsonl); each
    costs a forward pass. 0: never."""
    collapse_window: NonNegative = 0
    """Training steps that the collapse guard looks at, and that its baseline is made of; 0: off."""
    collapse_fraction: Fraction = 0.1
    """Collapse: over the whole window reward std and entropy are below this fraction of the first window's, and the
    reward is no higher than it was then."""
    collapse_stop: bool = False
    """End the run on collapse, instead of a warning."""

    @field_validator("trackers")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in TRACKERS and ":" not in name:
                hint = nearest(name, TRACKERS)
                raise ValueError(
                    f"there is no tracker {name!r}"
                    + (f"; did you mean {hint!r}?" if hint else f"; there are: {', '.join(TRACKERS)}, module:Class")
                )
        if len(set(names)) < len(names):
            raise ValueError("a tracker is named twice")
        return names


class Config(Section):
    """A resolved preset."""

    run: Run = Run()
    model: Model = Model()
    deploy: Deploy = Deploy()
    engine: Engine = Engine()
    gateway: Gateway = Gateway()
    pool: Pool = Pool()
    rollout: Rollout = Rollout()
    env: list[Env] = []
    eval: list[Eval] = []
    reward: dict[str, Reward] = {}
    algo: Algo = Algo()
    train: Train = Train()
    reference: Reference = Reference()
    critic: Critic = Critic()
    sync: Sync = Sync()
    ckpt: Ckpt = Ckpt()
    monitor: Monitor = Monitor()
    sft: Sft = Sft()
    extends: list[str] | str = Field(default=[], exclude=True)
    """Presets or files this one is laid over."""

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        """Contradictions between keys; the loader adds both places to `[a] and [b]` in the message."""
        problems = []
        if bool(self.model.path) == bool(self.model.init):
            problems.append("exactly one of [model.path] and [model.init] must be set")
        if self.model.init == "tiny" and self.model.tiny.hidden_size % self.model.tiny.heads:
            problems.append("[model.tiny.hidden_size] must be a multiple of [model.tiny.heads]")
        if self.rollout.max_tokens >= self.model.max_context:
            problems.append(
                f"[rollout.max_tokens] = {self.rollout.max_tokens} leaves no room for a prompt in "
                f"[model.max_context] = {self.model.max_context}"
            )
        if self.train.minibatches > self.train.groups_per_step * self.rollout.group_size:
            problems.append("[train.minibatches] is more than the samples of [train.groups_per_step] groups")
        if self.train.memory.checkpoint_layers and not self.train.memory.activation_checkpointing:
            problems.append(
                "[train.memory.checkpoint_layers] says how many, but [train.memory.activation_checkpointing] is false"
            )
        if (self.train.fsdp.strategy == "hybrid") != bool(self.train.fsdp.shard_size):
            problems.append(
                '[train.fsdp.strategy] = "hybrid" and [train.fsdp.shard_size] go together: set both or none'
            )
        if self.train.parallel.pipeline > 1 and self.train.fsdp.cpu_offload:
            problems.append(
                "[train.parallel.pipeline] and [train.fsdp.cpu_offload] do not go together: a stage "
                "computes where its weights are; more stages hold larger models, too"
            )
        if self.algo.advantage == "distill" and not self.reference.path:
            problems.append('[algo.advantage] = "distill" needs a teacher: set [reference.path]')
        if self.reference.update_every and (self.train.lora.rank or self.reference.path):
            problems.append(
                "[reference.update_every] needs whole weights and no [reference.path]: it copies the policy"
            )
        tags = [env.tag or env.name for env in self.env]
        if len(set(tags)) < len(tags):
            problems.append("two [env] tables have the same tag: give each its own `tag`")
        for number, one in enumerate(self.eval):
            if one.env and one.env not in tags:
                problems.append(f"[eval.{number}.env] = {one.env!r} names no [env] tag (there are: {', '.join(tags)})")
        problems += self._problems_of_best() + self._problems_of_quantize()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _problems_of_best(self) -> list[str]:
        name, _, key = self.ckpt.best_metric.rpartition(".")
        names = list(dict.fromkeys(one.name for one in self.eval))
        if not self.ckpt.best_metric or (name in names and key in BEST_KEYS):
            return []
        valid = ", ".join(f"{one}.{key}" for one in names for key in BEST_KEYS) or "nothing: there is no [[eval]]"
        return [f"[ckpt.best_metric] = {self.ckpt.best_metric!r} is not measured; there is {valid}"]

    def _problems_of_quantize(self) -> list[str]:
        train, key = self.train, "[train.lora.quantize]"
        if not train.lora.quantize:
            return []
        problems = [] if train.lora.rank else [f"{key} keeps the base in 4 bits, but [train.lora.rank] = 0 trains it"]
        if train.parallel.tensor > 1:
            problems.append(f"{key} and [train.parallel.tensor] exclude each other: 4-bit weights are not cut")
        if train.parallel.pipeline > 1:
            problems.append(f"{key} and [train.parallel.pipeline] exclude each other: 4-bit layers are not dealt out")
        if train.compile:
            problems.append(f"{key} and [train.compile] exclude each other: 4-bit layers are not compiled")
        if train.fsdp.cpu_offload:
            problems.append(f"{key} and [train.fsdp.cpu_offload] exclude each other: 4-bit weights stay on the device")
        return problems

    # ------------------------------------------------------------ derived

    @property
    def pool_url(self) -> str:
        return self.pool.url if self.pool.elsewhere else f"tcp://{self.pool.host}:{self.pool.port}"

    @property
    def gateway_url(self) -> str:
        return f"http://{self.gateway.host}:{self.gateway.port}"

    @property
    def rollout_url(self) -> str:
        return f"tcp://{self.rollout.host}:{self.rollout.port}"

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir)

    @property
    def model_dir(self) -> str:
        """What tokenizers and engines load first: the path given, or the model built in the run directory."""
        return self.model.path or str(self.run_dir / "model")

    @property
    def response_length(self) -> int:
        return self.gateway.response_length or self.rollout.max_tokens

    @property
    def prompt_length(self) -> int:
        return self.gateway.prompt_length or self.model.max_context - 1

    def env_by_tag(self, tag: str) -> Env:
        """The [[env]] with this tag; the first one for an empty tag."""
        return next(env for env in self.env if not tag or (env.tag or env.name) == tag)
