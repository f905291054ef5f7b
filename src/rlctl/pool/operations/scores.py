"""Complete trajectories get their rewards, and feedback."""

import math

from rlctl.pool.ledger import Ledger
from rlctl.pool.state import LiveTrajectory, Refusal
from rlctl.wire.messages import (
    Done,
    Feedback,
    FeedbackTaken,
    Reply,
    SubmitScores,
)
from rlctl.wire.samples import Score, Trajectory


class Scores:
    """What is handed out to be scored, and what comes back."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.state = ledger.state

    def take_unscored(self, limit: int, now: float, steps: bool = True) -> list[Trajectory]:
        """Complete trajectories without a reward, the first completed first; not an event: nothing depends on it."""
        trajectories = [self.state.trajectories[uid] for uid in self.ledger.unscored.take(limit, now)]
        return [trajectory.view(self.state.groups[trajectory.group], steps) for trajectory in trajectories]

    def submit_scores(self, event: SubmitScores, now: float) -> Reply:
        del now
        accepted = duplicate = refused = 0
        for score in event.scores:
            trajectory = self.state.trajectories.get(score.trajectory_uid)
            if trajectory is None or trajectory.reward is not None:
                duplicate += 1
            elif not trajectory.complete:
                refused += 1
            else:
                accepted += 1
                self._score(trajectory, score)
        return Done(accepted, duplicate, refused)

    def _score(self, trajectory: LiveTrajectory, score: Score) -> None:
        if score.error or not math.isfinite(score.reward):
            self.ledger.count("scoring_errors")
            self.ledger.end(trajectory, "failed", error=score.error or f"the reward is {score.reward}")
            return
        trajectory.reward = score.reward
        trajectory.reward_parts, trajectory.step_rewards = score.parts, score.step_rewards
        self.ledger.settle(trajectory)

    def feedback(self, event: Feedback, now: float) -> Reply:
        del now
        uid = event.trajectory_uid
        if event.uid and event.uid in self.state.feedback:
            return FeedbackTaken(duplicate=True)
        if not math.isfinite(event.value):
            raise Refusal(f"feedback on {uid}: the value is {event.value}")
        trajectory = self.state.trajectories.get(uid)
        if trajectory is None and uid not in self.state.tombstones:
            raise Refusal(f"no trajectory {uid!r} is known")
        if trajectory and event.step_index >= 0 and event.step_index not in trajectory.steps:
            raise Refusal(f"trajectory {uid} has no step {event.step_index}")
        return FeedbackTaken(rescored=self.ledger.note(event))
