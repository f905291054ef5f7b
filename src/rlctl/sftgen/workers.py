"""Blocks of seeds played by processes, given back in the order of the seeds.

    next block --> the worker with the fewest --> records, seconds --> kept until all blocks before are out

This process plays, too, while nothing waits for it: of two there is one whose rows go through no pipe, and none that
only hands out. With many it has no time left for that.
"""

import fcntl
import multiprocessing
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from rlctl.errors import RlctlError
from rlctl.sftgen.blocks import Blocks
from rlctl.sftgen.rows import Block, Player, Recipe, Record

AHEAD = 8
"""Blocks a worker has at most: while this process plays a long one, the others have enough to go on with."""
PIPE = 1 << 20
"""Bytes; as much as Linux gives to anybody."""
Played = tuple[list[Record], float]
"""Records of a block and the seconds of CPU it took."""
Play = Callable[[Block], Played]


def played(recipe: Recipe, blocks: Blocks, workers: int) -> Generator[list[Record], None, None]:
    """Records, block by block, until there are no more blocks; RlctlError when a worker dies."""
    with ExitStack() as stack:
        crew = [stack.enter_context(worker) for worker in _crew(recipe, workers - 1)]
        yield from _ordered(_timed(Player(recipe)), crew, blocks)


def _ordered(play: Play, crew: list["_Worker"], blocks: Blocks) -> Iterator[list[Record]]:
    sent = due = 0
    done: dict[int, list[Record]] = {}
    most = 2 * AHEAD * (len(crew) + 1)

    def back(number: int, records: list[Record], seconds: float) -> None:
        blocks.played(len(records), seconds)
        done[number] = records

    while True:
        for worker in sorted(crew, key=lambda one: len(one.numbers)):
            while len(worker.numbers) < AHEAD and sent - due < most and (block := blocks.next(worker.seeds)):
                worker.send(sent, block)
                sent += 1
        if due in done:
            records = done.pop(due)
            due += 1
            yield records
            blocks.taken(len(records))
        elif ready := _ready(crew, timeout_s=0):
            for worker in ready:
                back(*worker.receive())
        elif sent - due < most and (block := blocks.next()):
            back(sent, *play(block))
            sent += 1
        elif due == sent:
            return
        else:
            _ready(crew, timeout_s=None)


def _ready(crew: list["_Worker"], timeout_s: float | None) -> list["_Worker"]:
    """Those that have something."""
    ready = wait([worker.results for worker in crew if worker.numbers], timeout_s)
    return [worker for worker in crew if worker.results in ready]


class _Worker:
    """One process and the pipes to it and from it."""

    def __init__(self, context: Any, recipe: Recipe, inherited: list[Connection]) -> None:
        given, self._blocks = context.Pipe(duplex=False)
        self.results, made = context.Pipe(duplex=False)
        _widen(made)
        self.numbers: list[int] = []
        """Blocks it has, oldest first."""
        self.seeds = 0
        """Of these."""
        ends = [*inherited, *self.ends] if context.get_start_method() == "fork" else []
        self._process = context.Process(target=_work, args=(given, made, recipe, ends), daemon=True)
        self._process.start()
        given.close()
        made.close()

    @property
    def ends(self) -> list[Connection]:
        """This process's."""
        return [self._blocks, self.results]

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        for end in self.ends:
            end.close()

    def send(self, number: int, block: Block) -> None:
        self.numbers.append(number)
        self.seeds += block.seeds
        with suppress(BrokenPipeError):  # why it has ended stands in the other pipe
            self._blocks.send(block)

    def receive(self) -> tuple[int, list[Record], float]:
        try:
            answer = self.results.recv()
        except (EOFError, OSError):
            self._process.join()
            raise RlctlError(f"a worker process ended with exit code {self._process.exitcode}") from None
        if isinstance(answer, BaseException):
            raise answer
        records, seconds = answer
        self.seeds -= len(records)
        return self.numbers.pop(0), records, seconds


def _crew(recipe: Recipe, workers: int) -> list[_Worker]:
    # A forked worker starts in milliseconds, but must not be made while other threads hold locks; a spawned one can.
    alone = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if alone else "spawn")
    crew: list[_Worker] = []
    for _ in range(workers):
        crew.append(_Worker(context, recipe, [end for worker in crew for end in worker.ends]))
    return crew


def _widen(pipe: Connection) -> None:
    """Let a pipe take a block's rows at once: whoever made them goes on while nobody reads them yet."""
    if sys.platform == "linux":
        with suppress(PermissionError):  # all pipes of this user together are as wide as the system allows
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE)


def _work(given: Connection, made: Connection, recipe: Recipe, inherited: list[Connection]) -> None:
    """The worker's side: plays blocks until a pipe is closed, also by the death of the process at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; only the first process answers it
    for end in inherited:  # else this process would keep the pipes open that tell the others of that death
        end.close()
    try:
        play = _timed(Player(recipe))
        while True:
            made.send(play(given.recv()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        made.send(error)


def _timed(player: Player) -> Play:
    def play(block: Block) -> Played:
        started = time.process_time()
        return player.play(block), time.process_time() - started

    return play
