"""Configuration -> the processes of a run (pure; `rlctl up --plan` prints it).

    prepare (model, demonstrations)
      |-> pool, engine-0..n -> gateway -+-> rollout -> [sft, to its end] -> train, whose exit 0 ends the run
      '----> reward --------------------'
    track (monitor.trackers): reads the run directory only; nothing waits for it

A process starts as soon as everything it needs is ready, so this list is in order of readiness.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlctl.config import Config
from rlctl.config.suggest import nearest
from rlctl.errors import ConfigError
from rlctl.up.planning.devices import Split


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of `rlctl up` (without its own RLCTL__ variables: those are in resolved.toml)."""
    gpus: tuple[int, ...] = ()
    stage: Literal["prepare", "serve", "sft", "train", "mirror"] = "serve"
    """mirror: sends a copy elsewhere; it is ended last, and the run goes on when it dies."""
    needs: tuple[str, ...] = ()
    """Processes that must be ready first."""
    ready_when: Literal["announced", "exit"] = "announced"
    """announced: `components/NAME.json` is there; exit: it has ended with exit code 0 (a stage)."""
    ends_run: bool = False
    """Its exit code 0 is the end of the run."""
    threads: int = 1


@dataclass(frozen=True)
class Ports:
    """Free ports, picked by the caller."""

    pool: int
    gateway: int
    rollout: int
    engines: tuple[int, ...]
    sft: int
    """Rendezvous of torchrun."""
    train: int


def plan(config: Config, run_dir: Path, ports: Ports, gpus: Split, only: Sequence[str] = ()) -> list[ProcessSpec]:
    """All processes of a run in order of readiness, or those named in `only` ("engine" stands for all engines)."""
    builder = _Builder(config, run_dir, ports, gpus)
    return _subset(builder.specs(), only) if only else builder.specs()


def builds_model(config: Config) -> bool:
    return config.model.init == "tiny"


def generates_demonstrations(config: Config) -> bool:
    return config.sft.max_steps > 0 and not config.sft.data.path


@dataclass(frozen=True)
class _Builder:
    config: Config
    run_dir: Path
    ports: Ports
    gpus: Split

    def specs(self) -> list[ProcessSpec]:
        config = self.config
        first = ("prepare",) if builds_model(config) or generates_demonstrations(config) else ()
        engines = () if config.engine.urls else tuple(f"engine-{i}" for i in range(config.engine.replicas))
        pool = () if config.pool.elsewhere else ("pool",)
        sft = ("sft",) if config.sft.max_steps else ()
        specs = []
        if config.monitor.trackers:
            specs.append(self._mirror())
        if first:
            specs.append(self._process("prepare", stage="prepare", ready_when="exit"))
        if pool:
            specs.append(self._process("pool"))
        for i, name in enumerate(engines):
            args = ("engine", "--index", str(i))
            threads = config.engine.threads
            specs.append(self._process(name, args, needs=first, gpus=self.gpus.engines[i], threads=threads))
        specs.append(self._process("gateway", needs=(*first, *pool, *engines)))
        specs.append(self._process("reward", needs=(*first, *pool)))
        specs.append(self._process("rollout", needs=(*pool, "gateway")))
        if sft:
            specs.append(self._trainer("sft", self.ports.sft, needs=("reward", "rollout"), ready_when="exit"))
        specs.append(self._trainer("train", self.ports.train, needs=("reward", "rollout", *sft), ends_run=True))
        return specs

    def _trainer(self, name: Literal["sft", "train"], port: int, **how: Any) -> ProcessSpec:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.config.train.processes)]
        torchrun += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        spec = self._process(name, stage=name, gpus=self.gpus.train, threads=self.config.train.threads, **how)
        return replace(spec, argv=(spec.argv[0], *torchrun, *spec.argv[1:]))

    def _mirror(self) -> ProcessSpec:
        spec = self._process("track", stage="mirror")
        return replace(spec, argv=(*spec.argv[:4], str(self.run_dir), "--follow"))

    def _process(self, name: str, args: tuple[str, ...] = (), **how: Any) -> ProcessSpec:
        spec = ProcessSpec(name, argv=(), **how)
        command, *flags = args or (name,)
        argv = (sys.executable, "-m", "rlctl", command, "--config", str(self.run_dir / "resolved.toml"), *flags)
        return replace(spec, argv=argv, env=self._environment(spec))

    def _environment(self, spec: ProcessSpec) -> dict[str, str]:
        config, ports = self.config, self.ports
        urls = config.engine.urls or [f"http://{config.engine.host}:{port}" for port in ports.engines]
        env = {
            "RLCTL__RUN__DIR": str(self.run_dir),
            "RLCTL__POOL__PORT": str(ports.pool),
            "RLCTL__GATEWAY__PORT": str(ports.gateway),
            "RLCTL__ROLLOUT__PORT": str(ports.rollout),
            "RLCTL__ENGINE__URLS": "[" + ", ".join(f'"{url}"' for url in urls) + "]",
            "OMP_NUM_THREADS": str(spec.threads),
        }
        if self.gpus.train or config.deploy.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
        return env


def _subset(specs: list[ProcessSpec], only: Sequence[str]) -> list[ProcessSpec]:
    """The named processes; what they need outside of the subset is taken to run elsewhere."""
    kinds = {spec.name: spec.name.partition("-")[0] for spec in specs}
    for word in only:
        if word not in kinds and word not in kinds.values():
            valid = list(dict.fromkeys([*kinds.values(), *kinds]))
            hint = nearest(word, valid)
            raise ConfigError(
                f"--only {word}: no such process" + (f"; did you mean {hint!r}?" if hint else f"; {', '.join(valid)}")
            )
    kept = [spec for spec in specs if spec.name in only or kinds[spec.name] in only]
    names = {spec.name for spec in kept}
    return [replace(spec, needs=tuple(need for need in spec.needs if need in names)) for spec in kept]
