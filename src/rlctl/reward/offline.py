"""Scoring a file: the same parts as `rlctl reward`, without pool or service."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rlctl.config.root import Config
from rlctl.errors import ConfigError
from rlctl.reward.combine import build
from rlctl.reward.functions import Sample
from rlctl.wire.samples import Facts

BATCH = 64


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str | None = ""


class Line(msgspec.Struct, frozen=True):
    """One line of the file; exactly one of `responses`, `response` and `messages`."""

    responses: list[str] | None = None
    response: str | None = None
    messages: list[Message] | None = None
    task: dict[str, str] = {}
    facts: Facts = Facts()

    def sample(self) -> Sample:
        given = [self.responses is not None, self.response is not None, self.messages is not None]
        if sum(given) != 1:
            raise ValueError("needs exactly one of responses, response and messages")
        if self.messages is not None:
            texts = [one.content or "" for one in self.messages if one.role == "assistant"]
        else:
            texts = [self.response] if self.response is not None else list(self.responses or [])
        return Sample(texts, self.task, self.facts)


def read(file: Path) -> list[Sample]:
    """ConfigError that names the first bad line."""
    if str(file) != "-" and not file.is_file():
        raise ConfigError(f"{file}: no such file")
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    decode = msgspec.json.Decoder(Line).decode
    samples = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                samples.append(decode(line).sample())
            except (msgspec.DecodeError, ValueError) as error:
                raise ConfigError(f"{file}:{number}: {error}") from error
    return samples


def score_all(config: Config, samples: list[Sample]) -> Iterator[dict[str, Any]]:
    """{"reward", "parts", "step_rewards", "error"} of each sample, in order."""
    cache = config.run_dir / "reward" / "scores.sqlite" if config.run.dir else None
    reward = build(config, cache)
    try:
        for start in range(0, len(samples), BATCH):
            some = samples[start : start + BATCH]
            for one in reward.score([""] * len(some), some):
                yield {name: getattr(one, name) for name in ("reward", "parts", "step_rewards", "error")}
    finally:
        reward.close()
