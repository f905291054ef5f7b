"""Small samples for the pool's tests."""

from rlctl.pool.state import Rules
from rlctl.pool.store import Store
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.messages import (
    CompleteTrajectory,
    FetchBatch,
    OpenGroup,
    SubmitScores,
    SubmitSteps,
)
from rlctl.wire.samples import Facts, Score, Step


def step(uid: str, index: int = 0, version: int = 0, tokens: int = 3, **fields: object) -> Step:
    return Step(
        trajectory_uid=uid,
        step_index=index,
        prompt_ids=pack_ids(range(5)),
        response_ids=pack_ids(range(tokens)),
        logprobs=pack_floats([-0.5] * tokens),
        versions=[(version, tokens)],
        parent=index - 1,
        **fields,
    )


def rules(**changes: object) -> Rules:
    return Rules(**{"max_in_flight": 4, **changes})


def opened(store: Store, prompt: str, size: int, now: float = 0.0, channel: str = "train") -> list[str]:
    """Open a group of `size`; the uids are PROMPT.0, PROMPT.1, ..."""
    uids = [f"{prompt}.{i}" for i in range(size)]
    store.apply(OpenGroup(prompt, uids, channel=channel, env="lake", task={"ground_truth": "4"}), now)
    return uids


def finish(
    store: Store, uid: str, now: float = 0.0, version: int = 0, reward: float | None = 1.0, **fields: object
) -> None:
    """One step and the end of the episode; `reward` None leaves it unscored."""
    store.apply(SubmitSteps([step(uid, 0, version, **fields)]), now)
    store.apply(CompleteTrajectory(uid, 1, facts=Facts(env_reward=1.0)), now)
    if reward is not None:
        store.apply(SubmitScores([Score(uid, reward, {"env": reward})]), now)


def ready_group(store: Store, prompt: str, size: int = 2, now: float = 0.0, version: int = 0) -> list[str]:
    uids = opened(store, prompt, size, now)
    for uid in uids:
        finish(store, uid, now, version)
    return uids


def fetch(store: Store, lease: str, groups: int = 1, now: float = 0.0, lease_s: float = 0.0):
    return store.apply(FetchBatch(groups, lease=lease, lease_s=lease_s), now)


def check_sums(store: Store) -> None:
    """created == sum(outcomes) + open, in every channel, counted from the live trajectories themselves."""
    values = store.statistics()
    for channel in {name.split(".")[0] for name in store.state.counters if "." in name}:
        live = sum(len(g.members) for g in store.state.groups.values() if g.channel == channel)
        assert values[f"{channel}.open"] == live
    assert sum(len(g.members) for g in store.state.groups.values()) == len(store.state.trajectories)


def outcomes(store: Store) -> list[tuple[str, str]]:
    """(uid, outcome) of what has ended since the last call."""
    return [(one.trajectory.uid, one.outcome) for one in store.take_ended()]
