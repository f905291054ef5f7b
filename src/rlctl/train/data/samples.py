"""Steps -> training samples: every response token trains in exactly one sample, in the context the engine saw.

A chain of `Step.parent` is one sample. Where two steps extend the same parent, the first (lowest `step_index`) goes
on with the parent's sample; every other one starts a new sample whose context is shared, hence masked:

    0 -- 1 -- 2          sample A: 0* 1* 2*
          \\-- 3 -- 4     sample B: 0  1  3* 4*        (* = trainable response)

The result does not depend on the order in which the steps arrive.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rlctl.wire.arrays import TOKEN_BYTES, count, expand_versions, filled, unpack_floats, unpack_ids
from rlctl.wire.samples import Step

NO_VERSION = -1


class BadSteps(ValueError):
    """Steps that cannot be trained on; the trajectory counts as failed."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """A model call with tokens that are trained."""

    turn: int
    """Its `step_index`."""
    tokens: int
    temperature: float
    """They were sampled with."""
    versions: Sequence[tuple[int, int]]
    """Run-length policy versions `[(version, tokens), ...]`."""


class TrainSample(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One token sequence `[T]`, and what the loss needs at the N tokens that are trained."""

    uid: str
    """Trajectory."""
    token_ids: np.ndarray
    """int32 `[T]`: prompt, response, prompt of the next turn, ..."""
    places: np.ndarray
    """int64 `[N]`, rising, above 0: where the tokens stand that the engine sampled and no other sample trains."""
    logprobs: np.ndarray
    """float32 `[N]`: behaviour log-probability."""
    advantages: np.ndarray
    """float32 `[N]`"""
    calls: Sequence[Call]
    """That sampled those tokens, in their order."""
    siblings_tokens: int = 0
    """Trainable tokens of all samples of this trajectory together."""
    group: str = ""
    """Prompt whose trajectories are compared with one another."""
    env: str = ""
    columns: Mapping[str, np.ndarray] = {}
    """Further float32 `[N]`, by name: `rewards` of each token; `reference`, `proximal` log-probabilities and `values`,
    which the trainer measures; `returns`, which the critic learns; `blend` (see `objective.losses.proximal`)."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trainable(self) -> int:
        """N."""
        return len(self.places)

    @property
    def turns(self) -> np.ndarray:
        """int32 `[N]`: `step_index` of the model call that sampled the token."""
        return np.repeat(np.array([call.turn for call in self.calls], np.int32), [call.tokens for call in self.calls])

    @property
    def versions(self) -> np.ndarray:
        """int32 `[N]`: policy version that sampled the token."""
        return expand_versions([run for call in self.calls for run in call.versions])

    @property
    def loss_mask(self) -> np.ndarray:
        """bool `[T]`: True at `places`."""
        mask = np.zeros(len(self), bool)
        mask[self.places] = True
        return mask


def build(uid: str, steps: Sequence[Step], advantage: float = 0.0) -> list[TrainSample]:
    """Samples of one trajectory, all with the same advantage on every trainable token; BadSteps names what is wrong.

    Its arrays are made of whole pieces of bytes: this is what a fetched batch mostly waits for.
    """
    by_index = {step.step_index: step for step in steps}
    if len(by_index) != len(steps):
        raise BadSteps(f"trajectory {uid}: two steps have the same step_index")
    for step in steps:
        _check(uid, step)
    _check_finite(uid, steps)
    total = sum([len(step.response_ids) for step in steps]) // TOKEN_BYTES
    chains = _chains(uid, by_index)
    return [_join(uid, [(by_index[i], owned) for i, owned in chain], advantage, total) for chain in chains]


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


def _check(uid: str, step: Step) -> None:
    versioned = sum([number for _, number in step.versions])
    if not len(step.response_ids) == len(step.logprobs) == TOKEN_BYTES * versioned:
        sampled, known = count(step.response_ids), count(step.logprobs)
        raise _bad(uid, step, f"{sampled} response tokens, {known} log-probabilities, {versioned} versions")
    if step.images:
        text = (
            f"it has {len(step.images)} images, and the trainer computes with token ids only; give the policy text, or "
            "collect such trajectories in a channel of their own (register_trajectory)"
        )
        raise _bad(uid, step, text)
    if step.parent == -1 and not step.prompt_ids:
        raise _bad(uid, step, "empty prompt")
    if versioned and not step.temperature > 0:
        raise _bad(uid, step, f"temperature {step.temperature:g}; only sampled tokens can be trained on")


def _check_finite(uid: str, steps: Sequence[Step]) -> None:
    if np.isfinite(unpack_floats(b"".join([step.logprobs for step in steps]))).all():
        return
    first = next(step for step in steps if not np.isfinite(unpack_floats(step.logprobs)).all())
    raise _bad(uid, first, "a log-probability is not finite")


def _bad(uid: str, step: Step, what: str) -> BadSteps:
    return BadSteps(f"trajectory {uid}, step {step.step_index}: {what}")


def _join(uid: str, chain: Sequence[tuple[Step, bool]], advantage: float, total: int) -> TrainSample:
    parts: list[bytes] = []
    logprobs, places, calls, at = [], [], [], 0
    for step, owned in chain:
        parts += (step.prompt_ids, step.response_ids)
        tokens = count(step.response_ids)
        at += count(step.prompt_ids) + tokens
        if owned:
            places.append(np.arange(at - tokens, at))
            logprobs.append(step.logprobs)
            calls.append(Call(step.step_index, tokens, step.temperature, step.versions))
    where = places[0] if len(places) == 1 else np.concatenate(places)
    return TrainSample(
        uid=uid,
        token_ids=unpack_ids(b"".join(parts)),
        places=where,
        logprobs=unpack_floats(b"".join(logprobs)),
        advantages=filled(len(where), advantage),
        calls=calls,
        siblings_tokens=total,
    )
