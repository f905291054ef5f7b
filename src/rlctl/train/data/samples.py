"""Steps -> training samples: every response token trains in exactly one sample, in the context the engine saw.

A chain of `Step.parent` is one sample. Where two steps extend the same parent, the first (lowest `step_index`) goes
on with the parent's sample; every other one starts a new sample whose context is shared, hence masked:

    0 -- 1 -- 2          sample A: 0* 1* 2*
          \\-- 3 -- 4     sample B: 0  1  3* 4*        (* = trainable response)

The result does not depend on the order in which the steps arrive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rlctl.wire.arrays import unpack_floats, unpack_ids
from rlctl.wire.samples import Step

NO_VERSION = -1


class BadSteps(ValueError):
    """Steps that cannot be trained on; the trajectory counts as failed."""


@dataclass(frozen=True)
class TrainSample:
    """One token sequence `[T]` with what the loss needs at each position.

    Entries where `loss_mask` is False mean nothing.
    """

    uid: str
    """Trajectory."""
    token_ids: np.ndarray
    """int32 `[T]`: prompt, response, prompt of the next turn, ..."""
    loss_mask: np.ndarray
    """bool `[T]`: True on the tokens the engine sampled and no other sample trains."""
    logprobs: np.ndarray
    """float32 `[T]`: behaviour log-probability of each token."""
    versions: np.ndarray
    """int32 `[T]`: policy version each token was sampled with."""
    temperatures: np.ndarray
    """float32 `[T]`: sampling temperature of each token."""
    advantages: np.ndarray
    """float32 `[T]`."""
    turns: np.ndarray
    """int32 `[T]`: `step_index` of the model call that a token belongs to."""
    siblings_tokens: int = 0
    """Trainable tokens of all samples of this trajectory together."""
    group: str = ""
    """Prompt whose trajectories are compared with one another."""
    env: str = ""
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further float32 `[T]`, by name: `rewards` of each token; `reference`, `proximal` log-probabilities and `values`,
    which the trainer measures; `returns`, which the critic learns; `blend` (see `objective.losses.proximal`)."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def trainable(self) -> int:
        """Number of tokens with loss."""
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True)
class _Piece:
    """The arrays of one step, checked."""

    prompt: np.ndarray
    response: np.ndarray
    logprobs: np.ndarray
    versions: Sequence[tuple[int, int]]
    temperature: float
    turn: int


def build(uid: str, steps: Sequence[Step], advantage: float = 0.0) -> list[TrainSample]:
    """Samples of one trajectory, all with the same advantage on every trainable token; BadSteps names what is wrong."""
    by_index = {step.step_index: step for step in steps}
    if len(by_index) != len(steps):
        raise BadSteps(f"trajectory {uid}: two steps have the same step_index")
    pieces = {index: _piece(uid, step) for index, step in by_index.items()}
    chains = _chains(uid, by_index)
    total = sum(len(piece.response) for piece in pieces.values())
    return [_join(uid, [(pieces[i], owned) for i, owned in chain], advantage, total) for chain in chains]


def _chains(uid: str, steps: dict[int, Step]) -> list[list[tuple[int, bool]]]:
    """Root-to-leaf chains `[(step_index, trainable here), ...]`, in the order of the step that opens each."""
    paths: dict[int, list[tuple[int, bool]]] = {}
    tips: dict[int, list[tuple[int, bool]]] = {}
    chains: list[list[tuple[int, bool]]] = []
    for index in sorted(steps):
        parent = steps[index].parent
        if parent != -1 and parent not in paths:
            raise BadSteps(f"trajectory {uid}: step {index} extends step {parent}, which does not come before it")
        if parent in tips:
            chain = tips.pop(parent)
        else:
            chain = [(i, False) for i, _ in paths[parent]] if parent != -1 else []
            chains.append(chain)
        chain.append((index, True))
        tips[index] = chain
        paths[index] = list(chain)
    return chains


def _piece(uid: str, step: Step) -> _Piece:
    prompt, response = unpack_ids(step.prompt_ids), unpack_ids(step.response_ids)
    logprobs, versioned = unpack_floats(step.logprobs), sum(number for _, number in step.versions)
    where = f"trajectory {uid}, step {step.step_index}"
    if not len(response) == len(logprobs) == versioned:
        raise BadSteps(
            f"{where}: {len(response)} response tokens, {len(logprobs)} log-probabilities, {versioned} versions"
        )
    if step.images:
        raise BadSteps(
            f"{where}: it has {len(step.images)} images, and the trainer computes with token ids only; give the policy "
            "text, or collect such trajectories in a channel of their own (register_trajectory)"
        )
    if step.parent == -1 and not len(prompt):
        raise BadSteps(f"{where}: empty prompt")
    if len(response) and not step.temperature > 0:
        raise BadSteps(f"{where}: temperature {step.temperature:g}; only sampled tokens can be trained on")
    if not np.isfinite(logprobs).all():
        raise BadSteps(f"{where}: a log-probability is not finite")
    return _Piece(prompt, response, logprobs, step.versions, step.temperature or 1.0, step.step_index)


def _join(uid: str, chain: Sequence[tuple[_Piece, bool]], advantage: float, total: int) -> TrainSample:
    """One sample; every array is made once and filled, which is what a fetched batch mostly waits for."""
    size = sum(len(piece.prompt) + len(piece.response) for piece, _ in chain)
    ids, turns = np.empty(size, np.int32), np.empty(size, np.int32)
    mask, versions = np.zeros(size, bool), np.full(size, NO_VERSION, np.int32)
    logprobs, temperatures = np.zeros(size, np.float32), np.empty(size, np.float32)
    start = 0
    for piece, owned in chain:
        middle = start + len(piece.prompt)
        end = middle + len(piece.response)
        ids[start:middle], ids[middle:end] = piece.prompt, piece.response
        mask[middle:end], logprobs[middle:end] = owned, piece.logprobs
        turns[start:end], temperatures[start:end] = piece.turn, piece.temperature
        for version, number in piece.versions:
            versions[middle : middle + number] = version
            middle += number
        start = end
    return TrainSample(
        uid=uid,
        token_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        versions=versions,
        temperatures=temperatures,
        advantages=np.full(size, advantage, np.float32),
        turns=turns,
        siblings_tokens=total,
    )
