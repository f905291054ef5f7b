"""Demonstrations -> training samples with the token boundaries that RL will see: pure.

Chats are encoded here; rows of `rlctl sft-gen --from-pool` bring the sampled tokens, which stay as they are.

The gateway encodes each new piece of text by itself: `[first prompt] [response ids] [text up to the next answer]
...`. So does this module, hence an answer never shares a token with what surrounds it. The loss is on the assistant's
own tokens, its end-of-turn token included.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlctl.errors import ConfigError
from rlctl.train.data.samples import NO_VERSION, Call, TrainSample

Message = dict[str, Any]


@dataclass(frozen=True)
class Writing:
    """A tokenizer, as far as demonstrations need one."""

    render: Callable[[Sequence[Message], bool], str]
    """(messages, with the generation prompt) -> text."""
    encode: Callable[[str], list[int]]
    """Without special tokens added."""
    end: str
    """Text of the end-of-turn token, e.g. <|im_end|>."""
    end_id: int


@dataclass(frozen=True)
class Recorded:
    """One sampled sequence."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True on the tokens to be learned."""


def encode(uid: str, messages: Sequence[Message], writing: Writing) -> list[TrainSample]:
    """Samples of one conversation: one, unless the template rewrites what came before (then a fork, as in RL).

    ValueError when the template does not end an answer with its text and the end-of-turn token.
    """
    pieces: list[tuple[list[int], bool]] = []
    known, samples = "", []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = writing.render(messages[:i], True)
        if not prompt.startswith(known):
            samples.append(_sample(uid, pieces))
            pieces, known = [], ""
        pieces.append((writing.encode(prompt[len(known) :]), False))
        pieces.append(([*writing.encode(message["content"]), writing.end_id], True))
        known = prompt + message["content"] + writing.end
    if not pieces:
        raise ValueError("no assistant message")
    if not writing.render(messages, False).startswith(known) and messages[-1]["role"] == "assistant":
        raise ValueError(f"the chat template does not end an answer with its text and {writing.end!r}")
    return [*samples, _sample(uid, pieces)]


def samples_of(uid: str, row: Sequence[Message] | Recorded, writing: Writing) -> list[TrainSample]:
    """A chat as `encode` makes it, or the recorded tokens."""
    if not isinstance(row, Recorded):
        return encode(uid, row, writing)
    return [_sampled(uid, np.asarray(row.token_ids, np.int32), np.asarray(row.loss_mask, bool))]


def _sample(uid: str, pieces: Sequence[tuple[list[int], bool]]) -> TrainSample:
    ids = np.concatenate([np.asarray(piece, np.int32) for piece, _ in pieces])
    return _sampled(uid, ids, np.concatenate([np.full(len(piece), sampled) for piece, sampled in pieces]))


def _sampled(uid: str, ids: np.ndarray, own: np.ndarray) -> TrainSample:
    places = np.flatnonzero(own[1:]) + 1  # nothing predicts the first token
    ones = np.ones(len(places), np.float32)
    return TrainSample(
        uid=uid,
        token_ids=ids,
        places=places,
        logprobs=np.zeros_like(ones),
        advantages=ones,
        calls=[Call(0, len(places), 1.0, [(NO_VERSION, len(places))])],
        siblings_tokens=len(places),
    )


def read(path: Path) -> list[list[Message] | Recorded]:
    """Rows of a JSONL file: chats `{"messages": [...]}`, or `{"token_ids": [...], "loss_mask": [...]}`.

    ConfigError names the first line that is neither.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no demonstrations; make them with `rlctl sft-gen`, or set sft.data.path")
    conversations: list[list[Message] | Recorded] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                if "token_ids" in row:
                    conversations.append(_recorded(row))
                    continue
                messages = row["messages"]
                if not all(isinstance(m["role"], str) and isinstance(m["content"], str) for m in messages):
                    raise TypeError("role and content must be text")
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f'{path}:{number}: not a row {{"messages": [{{"role", "content"}}]}}: {error}'
                ) from None
            conversations.append(messages)
    if not conversations:
        raise ConfigError(f"{path}: holds no demonstrations")
    return conversations


def _recorded(row: dict[str, Any]) -> Recorded:
    ids, mask = row["token_ids"], row["loss_mask"]
    if not all(type(token) is int and token >= 0 for token in ids) or not set(mask) <= {0, 1}:
        raise TypeError("token_ids are numbers from 0, loss_mask is 0 or 1")
    if len(ids) != len(mask) or not any(mask[1:]):
        raise TypeError("token_ids and loss_mask need the same length and a token to be learned after the first")
    return Recorded(ids, [bool(one) for one in mask])


def in_order(count: int, batch: int, step: int) -> list[int]:
    """Indices of the demonstrations of optimizer step `step` (from 0), in the order of the file, again and again."""
    return [place % count for place in range(step * batch, (step + 1) * batch)]


def shuffled(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of the demonstrations of optimizer step `step` (from 0):

    epochs, each shuffled by the seed and its number.
    """
    places = range(step * batch, (step + 1) * batch)
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(count) for epoch in {p // count for p in places}}
    return [int(orders[place // count][place % count]) for place in places]
