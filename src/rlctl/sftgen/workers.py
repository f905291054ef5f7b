"""Blocks of seeds played by processes, given back in the order of the seeds.

    next block --> the worker with the fewest --> records, seconds --> kept until all blocks before are out

Blocks grow until one takes BLOCK_S, so that neither the way through a pipe nor a block nobody waits for costs much.
Their size changes nothing in what is written.
"""

import multiprocessing
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from typing import Any

from rlctl.errors import RlctlError
from rlctl.sftgen.rows import Block, Player, Recipe, Record

BLOCK_S = 0.05
FIRST, LARGEST = 8, 512
"""Seeds of the first and of the largest block."""
AHEAD = 2
"""Blocks a worker has at most: one to play and one to go on with."""
Played = tuple[list[Record], float]
"""Records of a block and the seconds of CPU it took."""


class Blocks:
    """Makes the blocks: consecutive from `first` up to (not including) `end`."""

    def __init__(self, first: int, end: int | None, open_splits: Callable[[], tuple[str, ...]]) -> None:
        self._next, self._end, self._open_splits = first, end, open_splits
        self._size = FIRST

    def next(self) -> Block | None:
        """None where no seeds are left, or no split is open."""
        left = self._size if self._end is None else min(self._size, self._end - self._next)
        if left <= 0 or not (splits := self._open_splits()):
            return None
        block = Block(self._next, left, splits)
        self._next += left
        return block

    def took(self, seeds: int, seconds: float) -> None:
        """Fit the size of the blocks to come."""
        fitting = int(BLOCK_S * seeds / max(seconds, 1e-6))
        self._size = max(1, min(LARGEST, fitting, 2 * self._size))


def played(recipe: Recipe, blocks: Blocks, workers: int) -> Generator[list[Record], None, None]:
    """Records, block by block, until there are no more blocks; RlctlError when a worker dies."""
    if workers > 1:
        with ExitStack() as stack:
            crew = [stack.enter_context(worker) for worker in _crew(recipe, workers)]
            yield from _ordered(crew, blocks)
        return
    play = _timed(Player(recipe))
    while block := blocks.next():
        records, seconds = play(block)
        blocks.took(len(records), seconds)
        yield records


def _ordered(crew: list["_Worker"], blocks: Blocks) -> Iterator[list[Record]]:
    sent = due = 0
    waiting: dict[int, Played] = {}
    while True:
        for worker in sorted(crew, key=lambda one: len(one.numbers)):
            while len(worker.numbers) < AHEAD and sent - due < 2 * AHEAD * len(crew) and (block := blocks.next()):
                worker.send(sent, block)
                sent += 1
        if due == sent:
            return
        while due not in waiting:
            ready = wait([worker.connection for worker in crew if worker.numbers])
            for worker in crew:
                if worker.connection in ready:
                    number, result = worker.receive()
                    waiting[number] = result
        records, seconds = waiting.pop(due)
        due += 1
        blocks.took(len(records), seconds)
        yield records


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, context: Any, recipe: Recipe, inherited: list[Connection]) -> None:
        self.connection, theirs = context.Pipe()
        self.numbers: list[int] = []
        """Blocks it has, oldest first."""
        ends = [*inherited, self.connection] if context.get_start_method() == "fork" else []
        self._process = context.Process(target=_work, args=(theirs, recipe, ends), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self.connection.close()

    def send(self, number: int, block: Block) -> None:
        self.numbers.append(number)
        self.connection.send(block)

    def receive(self) -> tuple[int, Played]:
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            self._process.join()
            raise RlctlError(f"a worker process ended with exit code {self._process.exitcode}") from error
        if isinstance(answer, BaseException):
            raise answer
        return self.numbers.pop(0), answer


def _crew(recipe: Recipe, workers: int) -> list[_Worker]:
    # A forked worker starts in milliseconds, but must not be made while other threads hold locks; a spawned one can.
    alone = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if alone else "spawn")
    crew: list[_Worker] = []
    for _ in range(workers):
        crew.append(_Worker(context, recipe, [worker.connection for worker in crew]))
    return crew


def _work(connection: Connection, recipe: Recipe, inherited: list[Connection]) -> None:
    """The worker's side: plays blocks until the pipe is closed, also by the death of the process at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; only the first process answers it
    for end in inherited:  # else this process would keep the pipes open that tell the others of that death
        end.close()
    try:
        play = _timed(Player(recipe))
        while True:
            connection.send(play(connection.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        connection.send(error)


def _timed(player: Player) -> Callable[[Block], Played]:
    def play(block: Block) -> Played:
        started = time.process_time()
        return player.play(block), time.process_time() - started

    return play
