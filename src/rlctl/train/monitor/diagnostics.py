"""Signs of silent failure, from numbers: where trainer and engine disagree, whether learning has collapsed. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rlctl.train.data.samples import TrainSample

POSITIONS = (1, 4, 16, 64, 256, 1024, 4096)
"""Tokens of an answer are tabled by place: the first, 2 to 4, 5 to 16, ..."""


def mismatch(samples: Sequence[TrainSample]) -> list[dict[str, float | str]]:
    """Rows `{"by", "value", "tokens", "gap_mean", "gap_max", "kl"}` by env, turn and place in the answer.

    gap = |trainer - engine| of the log-probability of a sampled token (column `proximal`), kl = mean of k3 from engine
    to trainer.
    """
    if not samples:
        return []
    gaps = np.concatenate([(s.columns["proximal"] - s.logprobs).astype(np.float64) for s in samples])
    keys: dict[str, Callable[[TrainSample], np.ndarray]] = {
        "env": lambda s: np.full(s.trainable, s.env, dtype=object),
        "turn": lambda s: s.turns.astype(object),
        "position": lambda s: np.searchsorted(POSITIONS, places(s.turns) + 1).astype(object),
    }
    rows: list[dict[str, float | str]] = []
    for by, key in keys.items():
        labels = np.concatenate([key(sample) for sample in samples])
        for label in sorted(set(labels.tolist())):
            found = gaps[labels == label]
            name = _span(label) if by == "position" else label
            rows.append(
                {
                    "by": by,
                    "value": name,
                    "tokens": len(found),
                    "gap_mean": float(np.abs(found).mean()),
                    "gap_max": float(np.abs(found).max()),
                    "kl": float((np.expm1(found) - found).mean()),
                }
            )
    return rows


def places(turns: np.ndarray) -> np.ndarray:
    """Place of each token in its answer, from 0: turns `[N]` of the trained tokens of one sample."""
    begins = np.flatnonzero(np.append(True, turns[1:] != turns[:-1]))
    return np.arange(len(turns)) - np.repeat(begins, np.diff(np.append(begins, len(turns))))


def _span(number: int) -> str:
    first = 1 if number == 0 else POSITIONS[number - 1] + 1
    return f"{first}-" if number == len(POSITIONS) else f"{first}-{POSITIONS[number]}"


def worst(rows: Sequence[Mapping[str, float | str]]) -> Iterator[str]:
    """Per kind of table the row with the largest mean, in words."""
    for by in dict.fromkeys(row["by"] for row in rows):
        row = max((row for row in rows if row["by"] == by), key=lambda row: row["gap_mean"])
        yield f"{by} {row['value']}: {row['gap_mean']:.3g} over {row['tokens']} tokens"


def collapsed(rows: Sequence[Mapping[str, float]], window: int, fraction: float) -> str:
    """Why training rows (oldest first, with reward_mean, reward_std, entropy) show a collapse, or "".

    The echo trap of RAGEN (arXiv 2504.20073): answers become alike, so that reward differences and entropy vanish. A
    solved task looks the same but for its reward, hence the reward is asked too.
    """
    rows = [row for row in rows if "entropy" in row and "reward_std" in row]
    if not window or len(rows) < 2 * window:
        return ""
    first, last = rows[:window], rows[-window:]
    base = {name: float(np.mean([row[name] for row in first])) for name in ("reward_std", "entropy", "reward_mean")}
    for name in ("reward_std", "entropy"):
        if any(row[name] >= fraction * base[name] for row in last):
            return ""
    reward = float(np.mean([row["reward_mean"] for row in last]))
    if reward > base["reward_mean"]:
        return ""
    return (
        f"reward std and entropy stayed below {fraction:g} of their first values ({base['reward_std']:.3g}, "
        f"{base['entropy']:.3g}) for {window} steps, with reward {reward:.3g} after {base['reward_mean']:.3g}"
    )
