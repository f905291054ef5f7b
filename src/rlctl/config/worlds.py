"""Own keys of the built-in environments, typed like every other section ([[env]] name = ...)."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlctl.config.base import Fraction, Positive, Section


class FrozenLake(Section):
    """gymnasium's FrozenLake, in text."""

    size: int = Field(default=4, ge=2)
    """Side of the square lake."""
    p: Fraction = 0.8
    """Probability that a tile is frozen."""
    slippery: bool = False
    success_rate: Fraction = 1 / 3
    """Probability of the intended direction on slippery ice; the rest is split over both perpendicular ones."""
    maps: Literal["gymnasium", "ragen", "ragen_v1"] = "gymnasium"
    """gymnasium: start and goal in opposite corners; ragen, ragen_v1: random ones, as RAGEN of 2025-09 and 2025-02."""


class Sokoban(Section):
    """gym-sokoban's rules, in text."""

    rows: int = Field(default=6, ge=3)
    """With the walls around it, as `cols`."""
    cols: int = Field(default=6, ge=3)
    boxes: Positive = 1
    search_depth: Positive = 30
    """Depth of the reverse play that makes a room: pulls and walks (ragen, ragen_v1); longest plan in moves (own)."""
    rooms: Literal["ragen", "ragen_v1", "own"] = "own"
    """own: fast generator; ragen: board for board as RAGEN of 2025-03 and later; ragen_v1: as RAGEN of 2025-02."""
    max_plan: int = Field(default=100, gt=0)
    """Rooms whose solution is longer are skipped."""
    min_plan: Positive = 1
    """Rooms whose solution is shorter are skipped (own: not made): random play solves most rooms of one
    or two moves and few longer ones."""
    levels: str = ""
    """File or folder of levels in text (XSB, SOK, Boxoban's), played instead of generated rooms; size and number of
    boxes are then theirs. The seed of a level is its number, from 0."""
    solver: Literal["auto", "bfs", "astar"] = "auto"
    """Of rooms not generated backward (own): bfs: shortest plans, but only for rooms with few situations; astar: plans
    of large rooms with many boxes, not always the shortest; auto: astar where bfs finds too many situations."""

    @model_validator(mode="after")
    def _plans(self) -> "Sokoban":
        most = min(self.max_plan, self.search_depth) if self.rooms == "own" and not self.levels else self.max_plan
        if self.min_plan > most:
            raise ValueError(f"min_plan = {self.min_plan} is above the longest plan, {most} (max_plan, search_depth)")
        return self


class Countdown(Section):
    """Arithmetic puzzles: every number once, the target as value."""

    numbers: list[Annotated[int, Field(ge=2, le=5)]] = Field(default=[3, 4], min_length=1)
    """How many numbers a puzzle has: one of these."""
    largest: Positive = 99
    largest_target: Positive = 99


class Bandit(Section):
    """Two-armed bandits; every pair is [safe arm, risky arm]."""

    arms: list[tuple[str, str]] = [("phoenix", "dragon"), ("baker", "pirate"), ("teacher", "gambler")]
    """Pairs that are trained on."""
    val_arms: list[tuple[str, str]] = [("librarian", "trader"), ("gardener", "explorer")]
    """Pairs that are held out."""
    sft_arms: list[tuple[str, str]] = [("clerk", "astronaut")]
    """Pairs of demonstrations."""
    alike: list[list[str]] = []
    """Names that pay the same: every two of a list are demonstrated, and either is right."""


class Errands(Section):
    """Tasks that only the agent's own program (`command`) knows."""


class Questions(Section):
    """Questions with a known answer, from a file, a folder or the Hugging Face hub."""

    path: str
    """A file (JSONL, JSON, Parquet), a folder with one file per split (train.jsonl), or a hub id (openai/gsm8k)."""
    subset: str = ""
    """Configuration of a data set of the hub."""
    train_split: str = "train"
    val_split: str = ""
    """Split that is held out; empty: `val_percent` of the training split."""
    val_percent: int = Field(default=10, ge=1, le=99)
    question_key: str = "question"
    answer_key: str = "answer"
    rule: Literal["numeric", "exact"] = "numeric"
    """numeric: the same number (behind ####, in a box, after "answer is", or the last one); exact: the same text."""
    system: str = ""
    """System prompt."""
    instruction: str = ""
    """Added to every question."""


class Gsm8k(Questions):
    """Grade-school maths (Cobbe et al. 2021): 7,473 training and 1,319 test questions."""

    path: str = "openai/gsm8k"
    subset: str = "main"
    val_split: str = "test"
    instruction: str = "Think step by step, and give the final answer after ####."


class ReasoningGym(Section):
    """A task of the package reasoning-gym."""

    task: str
    """Its name there, e.g. leg_counting."""
    parameters: dict[str, Any] = {}
    """The task's own settings."""
    system: str = ""
    """System prompt."""
    instruction: str = "Give the final answer as <answer>your answer</answer>."
    """Added to every question."""


class TextArena(Section):
    """A single-player game of the package textarena."""

    game: str
    """Its id there, e.g. GuessTheNumber-v0."""
    success_reward: float = 1.0
    """Least reward of the game that counts as success."""


class Verifiers(Section):
    """An environment of the package verifiers (0.1)."""

    id: str
    """What its load_environment takes: the name of an installed environment, or of any module with that function."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of load_environment."""
    success_reward: float = 1.0
    """Least reward that counts as success."""


class Gymnasium(Section):
    """A gymnasium environment with discrete actions."""

    id: str
    """e.g. Taxi-v3."""
    parameters: dict[str, Any] = {}
    """Keyword arguments of gymnasium.make."""
    rules: str = ""
    """What the player is told once."""
    actions: list[str] = []
    """Names of the actions 0, 1, ...; empty: the numbers."""
    picture: Literal["observation", "ansi"] = "observation"
    """What the player sees: the observation as text, or the environment's ANSI picture."""
    split_by: Literal["start", "seed"] = "start"
    """Whether instances are told apart by their first picture, or only by their seed."""
    success_reward: float = 1.0
    """Least total reward of an ended episode that counts as success."""


WORLDS: dict[str, type[Section]] = {
    "frozenlake": FrozenLake,
    "sokoban": Sokoban,
    "countdown": Countdown,
    "bandit": Bandit,
    "two_armed_bandit": Bandit,
    "command": Errands,
    "reasoning_gym": ReasoningGym,
    "textarena": TextArena,
    "verifiers": Verifiers,
    "gymnasium": Gymnasium,
    "questions": Questions,
    "gsm8k": Gsm8k,
}
PACKAGES = {
    "reasoning_gym": "reasoning-gym",
    "textarena": "textarena",
    "verifiers": '"verifiers<0.2"',
    "gymnasium": "gymnasium",
}
"""What pip installs for the environment of this name; its module has this name too."""


def missing(name: str) -> str:
    """What is said where the package of an environment is missing."""
    return f"name = {name!r} needs a package: pip install {PACKAGES[name]}"
