"""Token-level advantages of a whole batch: the trained tokens of a trajectory may lie in several samples.

samples --by trajectory, tokens in the order of turns--> [N] arrays --credit--> advantages, returns --> samples
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from rlctl.config.algorithm import TOKEN_KINDS, Algo
from rlctl.train.data.samples import TrainSample
from rlctl.train.objective import credit


def assign(samples: Sequence[TrainSample], algo: Algo) -> list[TrainSample]:
    """Samples with the advantages of `algo.advantage` where those differ by token, whitened if asked for.

    Needs the columns `rewards` (all but distill), `values` (gae, bi_level_gae: they also set `returns`), `reference`
    (distill).
    """
    done = list(samples)
    if algo.advantage in TOKEN_KINDS:
        for places in by_trajectory(samples):
            columns = _of_tokens([samples[i] for i in places], algo)
            for place, sample in zip(places, spread([samples[i] for i in places], columns), strict=True):
                done[place] = sample
    if algo.whiten or algo.advantage in ("reinforce_pp", "reinforce_pp_baseline"):
        white = credit.whiten([s.advantages.astype(np.float64) for s in done])
        done = [replace(s, advantages=values.astype(np.float32)) for s, values in zip(done, white, strict=True)]
    return done


def with_rewards(samples: Sequence[TrainSample], rewards: tuple[float, Sequence[float]]) -> list[TrainSample]:
    """The samples of one trajectory with the column `rewards`: (sum, rewards of turns) as `credit.place_rewards`."""
    total, of_turns = rewards
    turns = joined(samples, [s.turns for s in samples])
    return spread(samples, {"rewards": credit.place_rewards(total, turns.astype(np.int64), of_turns)})


def _of_tokens(samples: Sequence[TrainSample], algo: Algo) -> dict[str, np.ndarray]:
    """`advantages` and `returns` `[N]` of one trajectory."""
    if algo.advantage == "distill":
        return {"advantages": column(samples, "reference") - joined(samples, [s.logprobs for s in samples])}
    rewards = column(samples, "rewards")
    if algo.advantage not in ("gae", "bi_level_gae"):
        return {"advantages": credit.discounted(rewards, 1.0)}
    values = column(samples, "values")
    if algo.advantage == "gae":
        advantages = credit.gae(rewards, values, algo.gamma, algo.lam)
    else:
        turns = joined(samples, [s.turns for s in samples])
        advantages = credit.bi_level_gae(rewards, values, turns, algo.gamma, algo.lam, algo.turn_gamma, algo.turn_lam)
    return {"advantages": advantages, "returns": advantages + values}


def by_trajectory(samples: Sequence[TrainSample]) -> Iterator[list[int]]:
    """Places of the samples of each trajectory."""
    places: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        places.setdefault(sample.uid, []).append(i)
    return iter(places.values())


def column(samples: Sequence[TrainSample], name: str) -> np.ndarray:
    return joined(samples, [sample.columns[name] for sample in samples])


def joined(samples: Sequence[TrainSample], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One array per sample of a trajectory -> float64 `[N]` of its trained tokens, in the order of turns."""
    return np.concatenate(arrays)[_order(samples)].astype(np.float64)


def spread(samples: Sequence[TrainSample], columns: dict[str, np.ndarray]) -> list[TrainSample]:
    """The way back: `[N]` arrays into the samples; `advantages` is a field, the others are columns."""
    order, done = _order(samples), list(samples)
    cuts = np.cumsum([sample.trainable for sample in samples])[:-1]
    for name, values in columns.items():
        flat = np.empty(len(order))
        flat[order] = values
        for i, part in enumerate(np.split(flat, cuts)):
            array = part.astype(np.float32)
            if name == "advantages":
                done[i] = replace(done[i], advantages=array)
            else:
                done[i] = replace(done[i], columns={**done[i].columns, name: array})
    return done


def _order(samples: Sequence[TrainSample]) -> np.ndarray:
    """A turn's tokens are trained in one sample, so sorting by turn gives the order of sampling."""
    return np.argsort(np.concatenate([sample.turns for sample in samples]), kind="stable")
