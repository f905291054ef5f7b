"""One episode as a state machine without input or output: rollouts and demonstrations drive the same one.

    messages -> (a model, or an expert) -> feed(text) -> messages ... until done -> facts()

An answer that cannot be read costs a turn and moves nothing. The environment's reward is kept apart from the format
penalty, which `facts().extra["format_penalty"]` holds for whoever computes the training reward.
"""

from collections.abc import Callable

from rlctl.config.serving import Env
from rlctl.envs import text
from rlctl.envs.base import Instance, Player
from rlctl.wire.samples import Facts


class Episode:
    """Plays one instance; `stream` numbers the rollouts of a group, each with luck of its own."""

    def __init__(self, env: Env, family: Player, instance: Instance, stream: int = 0) -> None:
        self.env = env
        self.world = family.world(instance, stream)
        self.done = False
        self.success = False
        self.truncated = False
        self.turn_rewards: list[float] = []
        """Environment reward of every answered turn."""
        self.format_errors = 0
        self.played = 0
        """Actions so far."""
        self.dropped = 0
        """Actions that were named and not played."""
        self.watch: Callable[[str, float, str], None] | None = None
        """Told every action, its reward and the board after it: for pictures."""
        self._names = family.actions
        self.messages = text.first_messages(env, family, self.world.render(), env.max_actions)
        """The conversation so far: what the next model call is sent."""

    @property
    def limit(self) -> int:
        """Most actions the next answer may have."""
        return min(self.env.actions_per_turn, self.env.max_actions - self.played)

    def feed(self, answer: str) -> bool:
        """Take the assistant's answer to `messages`; True when the episode is over."""
        if self.done:
            raise ValueError("the episode is over")
        env = self.env
        parsed = text.parse(answer, env, self._names, self.limit)
        self.messages.append({"role": "assistant", "content": answer})
        self.format_errors += parsed.invalid
        self.dropped += parsed.dropped
        self.turn_rewards.append(self._play(parsed.actions))
        turns = len(self.turn_rewards)
        if not self.done and (turns == env.max_turns or self.played == env.max_actions):
            self.stop()
        if not self.done:
            left = env.max_actions - self.played
            state = self.world.render()
            self.messages.append(text.next_message(env, state, turns + 1, left, self.turn_rewards[-1]))
        return self.done

    def stop(self) -> None:
        """End it before the world does: out of turns, actions or context."""
        self.done = self.truncated = True

    def facts(self) -> Facts:
        """What is known about the episode so far."""
        return Facts(
            env_reward=sum(self.turn_rewards),
            success=self.success,
            turn_rewards=list(self.turn_rewards),
            format_errors=self.format_errors,
            actions=self.played,
            truncated=self.truncated,
            extra={
                "format_penalty": self.env.format_penalty * self.format_errors,
                "dropped_actions": float(self.dropped),
                "turns": float(len(self.turn_rewards)),
            },
        )

    def _play(self, actions: tuple[int, ...]) -> float:
        """Step until done; returns the reward of the turn."""
        reward = 0.0
        for number, action in enumerate(actions):
            outcome = self.world.step(action)
            self.played += 1
            reward += outcome.reward
            if self.watch:
                self.watch(self._names[action], outcome.reward, self.world.render())
            if outcome.done:
                self.done, self.success = True, outcome.success
                self.dropped += len(actions) - number - 1
                break
        return reward
