"""Feedback on a trajectory or a Step: a part of the reward called `feedback`, added to what is not trained yet.

    reward += weight * value;  parts["feedback"] += value;  step_rewards[step_index] += weight * value (if it names one)

It waits while the trajectory has no reward yet, or is on lease (the trainer already has its reward).
"""

from rlctl.pool.state import LiveTrajectory

PART = "feedback"


def settle(trajectory: LiveTrajectory, weight: float) -> None:
    """Add what has been waiting; nothing happens while there is no reward."""
    if trajectory.reward is None or not trajectory.feedback:
        return
    waiting, trajectory.feedback = trajectory.feedback, []
    total = sum(one.value for one in waiting)
    parts = trajectory.reward_parts
    trajectory.reward += weight * total
    trajectory.reward_parts = parts | {PART: parts.get(PART, 0.0) + total}
    steps = [one for one in waiting if one.step_index >= 0]
    if steps:
        rewards = list(trajectory.step_rewards) or [0.0] * len(trajectory.steps)
        for one in steps:
            rewards[sorted(trajectory.steps).index(one.step_index)] += weight * one.value
        trajectory.step_rewards = rewards
