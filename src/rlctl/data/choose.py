"""Which trajectories of a run: conditions on outcome, reward, environment, policy version, length and text."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlctl.errors import ConfigError
from rlctl.wire import arrays
from rlctl.wire.frames import read_ended, read_feedback
from rlctl.wire.messages import Feedback
from rlctl.wire.samples import Ended, Trajectory


@dataclass(frozen=True)
class Choice:
    """All conditions must hold; the default chooses everything of channel `train`."""

    channel: str = "train"
    """Empty: every channel."""
    outcome: str = ""
    env: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    """A trajectory without a reward meets no bound."""
    min_version: int | None = None
    max_version: int | None = None
    """Of all its tokens."""
    min_tokens: int | None = None
    max_tokens: int | None = None
    """Sampled tokens of all its Steps."""
    text: str = ""
    """Regular expression that a response must match."""


def versions(trajectory: Trajectory) -> tuple[int, int]:
    """Lowest and highest policy version of its tokens; (-1, -1) without any."""
    found = [version for step in trajectory.steps for version, _ in step.versions]
    return (min(found), max(found)) if found else (-1, -1)


def response_tokens(trajectory: Trajectory) -> int:
    return sum(arrays.count(step.response_ids) for step in trajectory.steps)


def chosen(run_dir: Path, choice: Choice, decode: Callable[[bytes], str] | None) -> Iterator[Ended]:
    """In the order of their ends, on a live run as on a dead one; `decode` is needed for a condition on the text."""
    try:
        pattern = re.compile(choice.text) if choice.text else None
    except re.error as error:
        raise ConfigError(f"--text {choice.text!r} is no regular expression: {error}") from error
    for _, ended in read_ended(run_dir / "trajectories"):
        if not _meets(ended, choice):
            continue
        if pattern and decode and not any(pattern.search(decode(s.response_ids)) for s in ended.trajectory.steps):
            continue
        yield ended


def feedback(run_dir: Path) -> dict[str, list[Feedback]]:
    """By trajectory, in the order of arrival."""
    found: dict[str, list[Feedback]] = {}
    for noted in read_feedback(run_dir / "trajectories"):
        found.setdefault(noted.feedback.trajectory_uid, []).append(noted.feedback)
    return found


def _meets(ended: Ended, choice: Choice) -> bool:
    trajectory = ended.trajectory
    low, high = versions(trajectory)
    return (
        (not choice.channel or trajectory.channel == choice.channel)
        and (not choice.outcome or ended.outcome == choice.outcome)
        and (not choice.env or trajectory.env == choice.env)
        and _within(trajectory.reward, choice.min_reward, choice.max_reward)
        and _within(low, choice.min_version, None)
        and _within(high, None, choice.max_version)
        and _within(response_tokens(trajectory), choice.min_tokens, choice.max_tokens)
    )


def _within(value: float | None, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)
