"""What of a conversation the next model call is sent: all of it, the last turns, or a summary and what came after it.

    opening, answer 1, message 2, answer 2, message 3, ...      (Play.messages; always whole)
    full      the same
    last      opening + "turns left out" + message j, answer j, ..., the newest message
    summary   opening + "summary of turns 1 to n" + message n+1, answer n+1, ..., the newest message

A window begins anew with the opening, so its prompt does not extend the ids that are known: the trajectory forks there.
Each answer is still trained in exactly the context it was sampled in; answers that stand in a later prompt are prompt.
Summaries are written by the model that is trained, as model calls of their own with a reward of 0. Pure.
"""

from collections.abc import Sequence

from rlctl.envs.base import Message

REQUEST = "Summarize in a few words what happened so far and what matters for the next turns."


def last_turns(messages: Sequence[Message], turns: int, opening: bool) -> list[Message]:
    """The newest message and the `turns` answered turns before it; the opening's words only with `opening`."""
    start = len(messages) - 1 - 2 * turns
    first = begin(messages)
    if start <= first:
        return list(messages)
    count = (start - first) // 2
    return restarted(messages, start, f"[{count} turn{'s' if count > 1 else ''} left out]", opening)


def after_summary(messages: Sequence[Message], covered: int, summary: str, opening: bool) -> list[Message]:
    """What came after the first `covered` answered turns, with the summary of those before it."""
    return restarted(messages, begin(messages) + 2 * covered, f"Summary of turns 1 to {covered}: {summary}", opening)


def restarted(messages: Sequence[Message], start: int, note: str, opening: bool) -> list[Message]:
    """The conversation from the message at `start` on; before it, in the same user message, the opening and the note.

    Roles go on taking turns, which many chat templates insist on.
    """
    first = begin(messages)
    words = [messages[first]["content"]] if opening else []
    content = "\n\n".join([*words, note, messages[start]["content"]])
    return [*messages[:first], {"role": "user", "content": content}, *messages[start + 1 :]]


def begin(messages: Sequence[Message]) -> int:
    """Where the message stands that the first answer is given to."""
    answers = (index for index, message in enumerate(messages) if message["role"] == "assistant")
    return next(answers, len(messages)) - 1


def answered(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


class Window:
    """The window of one episode. `opening`: whether the first message says more than the state (rules, legend)."""

    def __init__(self, kind: str, turns: int, opening: bool) -> None:
        self._kind, self._turns, self._opening = kind, turns, opening
        self._covered = 0
        """Answered turns that the summary is about."""
        self._summary = ""
        self.summaries: list[int] = []
        """For every summary, the number of model calls before it."""

    def request(self, messages: Sequence[Message]) -> list[Message] | None:
        """What the model is asked for a summary with, when it is time for one. It extends what the model has seen."""
        if self._kind != "summary" or answered(messages) - self._covered < self._turns:
            return None
        return [*self.shown(messages)[:-1], {"role": "user", "content": REQUEST}]

    def summarized(self, messages: Sequence[Message], summary: str) -> None:
        """The answer to the request."""
        self._covered, self._summary = answered(messages), summary
        self.summaries.append(self._covered + len(self.summaries))

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """What the next call is sent."""
        if self._kind == "last":
            return last_turns(messages, self._turns, self._opening)
        if self._covered:
            return after_summary(messages, self._covered, self._summary, self._opening)
        return list(messages)

    def rewards(self, turn_rewards: Sequence[float]) -> list[float]:
        """Rewards by model call: 0 for the calls that wrote a summary."""
        rewards = list(turn_rewards)
        for position in self.summaries:
            rewards.insert(position, 0.0)
        return rewards
