"""One episode as it is kept for people: turn by turn what was asked, said, done and seen.

Recorder(play) -- feed, feed, ... --> recorder.episode(...) -> Recorded -> files.save / the report
"""

import msgspec

from rlctl.envs.base import Message, Play
from rlctl.envs.episode import Episode
from rlctl.wire.samples import Facts


class Moment(msgspec.Struct, frozen=True):
    """One action of a turn."""

    action: str
    reward: float
    view: str
    """The board after it."""


class Turn(msgspec.Struct, frozen=True):
    """One model call."""

    prompt: list[Message]
    """Messages since the answer before."""
    answer: str
    reward: float
    readable: bool
    """Whether the answer could be read."""
    moments: list[Moment] = []
    """Empty for environments without a board."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One file episode.json."""

    uid: str
    """Of the trajectory: `rlctl traj RUN_DIR UID` has its tokens."""
    env: str
    """Kind of environment; decides how its boards are drawn."""
    tag: str
    series: str
    """Name of the [[eval]]; "train" for training episodes."""
    step: int
    """Training step of an evaluation; of a training group, the batch it was drawn for (1, 2, ...)."""
    number: int
    """Of the episode within its series and step; at every step of an [[eval]] the same number is the same instance."""
    instance: str
    start: str
    """The board before the first action; empty where there is none."""
    turns: list[Turn]
    reward: float
    success: bool
    truncated: bool
    error: str


class Recorder:
    """Plays an episode as it is, and writes down what happens in it."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._known = 0
        self._turns: list[Turn] = []
        self._start = ""
        self._moments: list[Moment] = []
        if isinstance(play, Episode):
            self._start = play.world.render()
            play.watch = lambda action, reward, view: self._moments.append(Moment(action, reward, view))

    @property
    def messages(self) -> list[Message]:
        return self._play.messages

    @property
    def done(self) -> bool:
        return self._play.done

    @property
    def success(self) -> bool:
        return self._play.success

    def feed(self, answer: str) -> bool:
        before = self._play.facts()
        prompt = list(self._play.messages[self._known :])
        over = self._play.feed(answer)
        after = self._play.facts()
        self._known += len(prompt) + 1  # the answer itself is the next message
        moments, self._moments[:] = list(self._moments), []
        readable = after.format_errors == before.format_errors
        self._turns.append(Turn(prompt, answer, after.env_reward - before.env_reward, readable, moments))
        return over

    def stop(self) -> None:
        self._play.stop()

    def facts(self) -> Facts:
        return self._play.facts()

    def episode(
        self, facts: Facts, *, uid: str, env: str, tag: str, series: str, step: int, number: int, instance: str
    ) -> Recorded:
        """The whole episode; `facts` are those its agent gave in the end."""
        return Recorded(
            uid=uid,
            env=env,
            tag=tag,
            series=series,
            step=step,
            number=number,
            instance=instance,
            start=self._start,
            turns=list(self._turns),
            reward=facts.env_reward,
            success=facts.success,
            truncated=facts.truncated,
            error=facts.error,
        )
