"""Which share of the global loss a token has: pure, over the whole minibatch, before it is cut into micro-batches."""

from collections.abc import Sequence

import numpy as np

from rlctl.train.data.samples import TrainSample


def aggregate(samples: Sequence[TrainSample], aggregation: str, length: int = 1) -> tuple[np.ndarray, float]:
    """float32 `[N]`, the weight of every trained token of all samples in their order; divisor of the whole minibatch.

    A sequence is a trajectory with n tokens, T turns of n_t tokens each; a prompt has n_p tokens in the minibatch.

    token_mean          sum l / (number of tokens)                            DAPO, arXiv 2503.14476, eq. 8
    seq_mean_token_sum  sum l / (number of sequences)                         REINFORCE with trajectories as actions
    seq_mean_token_mean sum l / n / (number of sequences)                     GRPO, arXiv 2402.03300, eq. 3
    seq_mean_turn_mean  sum l / (T n_t) / (number of sequences)               every turn of a trajectory alike
    prompt_mean         sum l / n_p / (number of prompts)                     every prompt alike, whatever its length
    constant_length     sum l / length / (number of sequences)                Dr.GRPO, arXiv 2503.20783, appendix A
    """
    counts = [sample.trainable for sample in samples]
    if aggregation == "token_mean":
        return np.ones(sum(counts), np.float32), float(max(1, sum(counts)))
    sequences = float(max(1, len({sample.uid for sample in samples})))
    if aggregation in ("seq_mean_token_sum", "constant_length"):
        return np.ones(sum(counts), np.float32), sequences * (length if aggregation == "constant_length" else 1)
    if aggregation == "seq_mean_turn_mean":
        return np.concatenate(_turn_weights(samples)).astype(np.float32), sequences
    if aggregation == "prompt_mean":
        tokens: dict[str, int] = {}
        for sample in samples:
            tokens[sample.group] = tokens.get(sample.group, 0) + sample.trainable
        return _spread([1.0 / max(1, tokens[sample.group]) for sample in samples], counts), float(len(tokens))
    return _spread([1.0 / max(1, sample.siblings_tokens) for sample in samples], counts), sequences


def _spread(weights: Sequence[float], counts: Sequence[int]) -> np.ndarray:
    """The weight of a sample at each of its tokens."""
    return np.repeat(np.array(weights, np.float32), counts)


def _turn_weights(samples: Sequence[TrainSample]) -> list[np.ndarray]:
    """`1 / (T n_t)` per trainable token; a turn is trained in one sample, T counts over all of a trajectory's."""
    counted = [np.unique(s.turns, return_inverse=True, return_counts=True) for s in samples]
    turns: dict[str, int] = {}
    for sample, (names, _, _) in zip(samples, counted, strict=True):
        turns[sample.uid] = turns.get(sample.uid, 0) + len(names)
    return [1.0 / (turns[s.uid] * counts[which]) for s, (_, which, counts) in zip(samples, counted, strict=True)]
