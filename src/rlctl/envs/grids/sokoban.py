"""Sokoban in text: gym-sokoban's rules and rewards; rooms of RAGEN, our own, or levels from files."""

import random
from typing import NamedTuple

import numpy as np

from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.base import Instance, Outcome, Rate, Skip
from rlctl.envs.boards import Boards
from rlctl.envs.grids.caves import cave_room
from rlctl.envs.grids.levels import Collection, read
from rlctl.envs.grids.rooms import reference_room
from rlctl.solvers.boards import Geometry, Room, move, paint, sketch
from rlctl.solvers.chances import Table, random_play
from rlctl.solvers.pushes import solve_by_pushes
from rlctl.solvers.search import Solution, solve

STEP, ON_TARGET, SOLVED = -0.1, 1.0, 10.0
MAX_TABLE = 20_000
"""States up to which random play is computed exactly."""
SAMPLES = 2_000
BFS_BEFORE_ASTAR = 50_000
"""Bound of the search for a shortest plan (`search.MAX_EXPANDED`) where A* comes after it: a quarter of a second."""


class Task(NamedTuple):
    """What an instance holds."""

    room: Room
    plan: tuple[int, ...]
    shortest: bool = True
    """False where nothing proves that there is no shorter plan."""


class SokobanWorld:
    """One episode in one room."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.boxes = room.boxes
        self.player = room.player
        self._picture = sketch(room.geometry, room.floor, room.targets)

    def render(self) -> str:
        """# wall, _ floor, O target, X box, √ box on target, P player, S player on target."""
        room = self.room
        return paint(self._picture, room.geometry, room.targets, self.boxes, self.player)

    def step(self, action: int) -> Outcome:
        """-0.1 for every step (blocked ones too), +1 or -1 for a box that comes on or off a target, +10 at the end."""
        room = self.room
        boxes, self.player = move(room.floor, self.boxes, self.player, room.geometry.deltas[action])
        reward = STEP
        if boxes != self.boxes:
            targets = room.targets
            reward += ON_TARGET * ((boxes & targets).bit_count() - (self.boxes & targets).bit_count())
            self.boxes = boxes
        if boxes == room.targets:
            return Outcome(reward + SOLVED, True, True)
        return Outcome(reward, False, False)


class SokobanExpert:
    """Plays a shortest plan (the first one in the order up, down, left, right)."""

    def __init__(self, plan: tuple[int, ...]) -> None:
        self._plan = plan
        self._played = 0

    def next(self, world: SokobanWorld, limit: int) -> tuple[int, ...]:
        actions = self._plan[self._played : self._played + limit]
        self._played += len(actions)
        return actions

    def thought(self, world: SokobanWorld, actions: tuple[int, ...]) -> str:
        ahead = self._plan[self._played - len(actions) :]
        return f"The shortest way from here: {', '.join(Sokoban.actions[action] for action in ahead)}."


class Sokoban(Boards):
    """All rooms of one [[env]]."""

    actions: tuple[str, ...] = ("Up", "Down", "Left", "Right")
    symbols: dict[str, str] = {
        "#": "wall",
        "_": "floor",
        "O": "target",
        "√": "box on a target",
        "X": "box",
        "P": "you",
        "S": "you on a target",
    }
    rules = (
        "You push boxes in a room. Bring every box onto a target. Walk into a box to push it; it moves if the cell"
        " behind it is free. Boxes cannot be pulled, so do not push them into corners."
        " Each action costs 0.1, a box on a target gives 1, solving the room gives 10."
    )
    shares = {"sft": 50, "sft_test": 5, "train": 30, "val": 15}

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.options = worlds.Sokoban.model_validate(env.options)
        self.geometry = Geometry(self.options.rows, self.options.cols)
        self._collection: Collection | None = None
        if self.options.levels:
            self._collection = read(self.options.levels)
            self.seeds_end, self.problems = len(self._collection.rooms), self._collection.problems

    def instance(self, seed: int) -> Instance | Skip:
        options, source = self.options, ""
        if self._collection is None and options.rooms == "own":
            deepest = min(options.search_depth, options.max_plan)
            made = cave_room(self.geometry, options.boxes, deepest, seed, options.min_plan)
            return Skip("no_instance") if made is None else _instance(seed, Task(*made))
        if self._collection is not None:
            if not 0 <= seed < len(self._collection.rooms):
                return Skip("no_instance")
            source, room = self._collection.rooms[seed]
        else:
            walk = options.rooms == "ragen"
            reference = reference_room(self.geometry, options.boxes, options.search_depth, seed, walk)
            if reference is None:
                return Skip("no_instance")
            room = reference
        found, shortest = self.solved(room)
        if found.outcome != "solved":
            return Skip(found.outcome, source)
        if len(found.plan) < options.min_plan:
            return Skip("too_short", source)
        return _instance(seed, Task(room, found.plan, shortest), source)

    def solved(self, room: Room) -> tuple[Solution, bool]:
        """(what was found, whether a plan is surely a shortest one)."""
        options = self.options
        if options.solver == "bfs":
            return solve(room, options.max_plan), True
        if options.solver == "auto":
            found = solve(room, options.max_plan, BFS_BEFORE_ASTAR)
            if found.outcome != "too_large":
                return found, True
        return solve_by_pushes(room, options.max_plan), False

    def world(self, instance: Instance, stream: int) -> SokobanWorld:
        """Nothing is random in Sokoban: all streams are alike."""
        return SokobanWorld(instance.payload.room)

    def expert(self, instance: Instance, tie: int) -> SokobanExpert:
        return SokobanExpert(instance.payload.plan)

    def proven(self, instance: Instance) -> bool:
        return bool(instance.payload.shortest)

    def floor(self, instance: Instance, actions: int) -> Rate:
        """Exact up to MAX_TABLE reachable states, else the mean of SAMPLES random episodes with fixed seeds."""
        room: Room = instance.payload.room
        table = reachable(room, actions, MAX_TABLE)
        if table is not None:
            return Rate(float(random_play(table, actions)[0]), True)
        luck = random.Random(f"floor {instance.key}")
        wins = sum(_random_episode(room, actions, luck) for _ in range(SAMPLES))
        return Rate(wins / SAMPLES, False)

    def ceiling(self, instance: Instance, actions: int) -> Rate:
        """Exact unless a plan that may not be the shortest is longer than `actions`."""
        solved = instance.shortest <= actions
        return Rate(float(solved), solved or self.proven(instance))


def _instance(seed: int, task: Task, source: str = "") -> Instance:
    return Instance(task.room.text().replace("\n", "/"), seed, task, len(task.plan), source)


def reachable(room: Room, steps: int, limit: int) -> Table | None:
    """All situations within `steps` moves as a finite world, state 0 the start; None if there are more than `limit`."""
    deltas, floor, targets = room.geometry.deltas, room.floor, room.targets
    number = {(room.boxes, room.player): 0}
    states = [(room.boxes, room.player)]
    rows: list[list[int]] = []
    inside = 0  # states found with a move to spare: only these are left
    for _ in range(steps):
        known = len(states)
        for index in range(inside, known):
            boxes, player = states[index]
            row = [index] * 4
            if boxes != targets:
                for action, delta in enumerate(deltas):
                    state = move(floor, boxes, player, delta)
                    row[action] = number.setdefault(state, len(states))
                    if row[action] == len(states):
                        states.append(state)
            rows.append(row)
        inside = known
        if len(states) > limit:
            return None
    rows += [[index] * 4 for index in range(inside, len(states))]
    solved = np.array([boxes == targets for boxes, _ in states])
    return Table(np.array(rows)[:, :, None], np.ones((1, 1)), solved, solved)


def _random_episode(room: Room, actions: int, luck: random.Random) -> bool:
    boxes, player, deltas = room.boxes, room.player, room.geometry.deltas
    for _ in range(actions):
        boxes, player = move(room.floor, boxes, player, deltas[int(luck.random() * 4)])
        if boxes == room.targets:
            return True
    return False
