"""The words of an episode: what a player is told, what a perfect one answers, how an answer is read.

Rollouts and demonstrations use these same functions, so a demonstration's prompts are the prompts of RL.

- `style = "full"`: a system turn, the rules, the symbols and the actions once; then in every turn its number, the
  state, the actions left and the format asked for; after a turn its reward (RAGEN's structure, in our words).
- `style = "compact"`, for tiny models: no system turn and no words; a user message is the state alone, every cell
  preceded by a space, so that a byte-level tokenizer gives one token per cell.
"""

import re
from typing import NamedTuple

from rlctl.config.serving import Env
from rlctl.envs.base import Message, Player

SYSTEM = "You play a game, turn by turn. Keep to the answer format exactly."
_ANSWER = r"\s*<answer>((?:(?!</?answer>).)*)</answer>\s*"
_PLAIN = re.compile(_ANSWER, re.DOTALL)
_THINK = re.compile(r"\s*<think>(?:(?!</?think>).)*</think>" + _ANSWER, re.DOTALL)


class Parsed(NamedTuple):
    """An answer, read."""

    actions: tuple[int, ...]
    """To be played, in this order."""
    invalid: bool
    """Not in the format, without a known action, or with an unknown one: costs the format penalty, once per turn."""
    dropped: int
    """Actions that were named and will not be played: unknown ones, and those over the limit."""


def first_messages(env: Env, family: Player, board: str, left: int) -> list[Message]:
    """The opening of the conversation; `left` actions may be played in all."""
    if env.style == "compact":
        return [{"role": "user", "content": spaced(board)}]
    symbols = ", ".join(f"{symbol} {meaning}" for symbol, meaning in family.symbols.items())
    several = (
        f"\nIn one turn you can give up to {env.actions_per_turn} actions, separated by {env.separator}"
        if env.actions_per_turn > 1
        else ""
    )
    intro = f"{family.rules}\nSymbols: {symbols}\nActions: {', '.join(family.actions)}{several}\n\n"
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": intro + _turn(env, board, 1, left)},
    ]


def next_message(env: Env, board: str, turn: int, left: int, reward: float) -> Message:
    """The user message that opens turn `turn` (2, 3, ...); `reward` is that of the turn before."""
    if env.style == "compact":
        return {"role": "user", "content": spaced(board)}
    return {"role": "user", "content": f"Reward: {reward:g}\n\n{_turn(env, board, turn, left)}"}


def _turn(env: Env, board: str, turn: int, left: int) -> str:
    some = f"action {env.separator} action" if env.actions_per_turn > 1 else "action"
    return f"Turn {turn}\nState:\n{board}\nActions left: {left}\n{format_asked_for(env, some)}"


def format_asked_for(env: Env, what: str) -> str:
    """The sentence that says how to answer."""
    thoughts = "<think>your thoughts</think>" if env.think else ""
    return f"Answer with {thoughts}<answer>{what}</answer> and nothing else."


def spaced(board: str) -> str:
    """Every cell with a space before it: "P_\\nOG" -> " P _\\n O G"."""
    return "\n".join([" " + " ".join(row) for row in board.split("\n")])


def answer(env: Env, names: list[str], thought: str = "") -> str:
    """What a perfect assistant writes; `thought` only counts where the environment asks for one."""
    actions = f" {env.separator} ".join(names)
    return f"<think>{thought}</think><answer>{actions}</answer>" if env.think else f"<answer>{actions}</answer>"


def body(text: str, env: Env) -> str | None:
    """What stands between <answer> and </answer>; None where the text is not in the format (see `parse`)."""
    found = (_THINK if env.think else _PLAIN).fullmatch(text)
    return None if found is None else found[1]


def parse(text: str, env: Env, actions: tuple[str, ...], limit: int) -> Parsed:
    """Read one answer; at most `limit` actions are taken.

    The whole text must be `<answer>...</answer>`, after `<think>...</think>` exactly where the environment asks for
    thoughts; only white space may stand around and between. Inside, names are separated by `env.separator`, upper and
    lower case are the same. Known actions are played in their order, unknown ones and those over the limit are dropped
    and counted. Nothing of the text is ever rewritten.
    """
    inside = body(text, env)
    if inside is None:
        return Parsed((), True, 0)
    known = {name.lower(): index for index, name in enumerate(actions)}
    named = [part.strip().lower() for part in inside.split(env.separator)]
    read = tuple([known[name] for name in named if name in known])
    played = read[:limit]
    return Parsed(played, len(read) < len(named), sum(map(bool, named)) - len(played))
