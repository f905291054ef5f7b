"""What one hand-over costs on this machine, whoever makes it: a synced append, a question to another process.

    python benchmarks/handover.py [--dir FOLDER] [--rounds 3] [--count 600]

- append: 6 KB at the end of a growing file, `fdatasync`; allocated: into blocks that `posix_fallocate` gave; zeros:
  over zeros that are on the disk already; journal: as the pool's journal writes small commits, its zeros included.
- tcp: an echo of 34 bytes over asyncio's streams; zeromq: a question to the pool's sockets (`wire.sockets`) that is
  answered at once. Each side has a core to itself.

One JSON line per round and measure, microseconds. Everything else in the gateway and the pool comes on top of these.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean

import uvloop

from rlctl.pool.storage.segments import Segments
from rlctl.wire import frames
from rlctl.wire.messages import Done, GetStatistics, Reply
from rlctl.wire.sockets import Answer, Ask

SIZE = 6_000
ECHO = (30).to_bytes(4, "little") + bytes(30)


def show(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    found = {f"p{percent}": ordered[len(ordered) * percent // 100] for percent in (50, 99)} | {"mean": fmean(seconds)}
    print(json.dumps({"measure": name} | {f"{key}_us": round(1e6 * one) for key, one in found.items()}), flush=True)


def appends(folder: Path, how: str, count: int) -> None:
    """Writes of SIZE bytes, each synced."""
    path, data, seconds = folder / how, os.urandom(SIZE), []
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    if how == "zeros":
        os.write(file, bytes(SIZE * count))
    elif how == "allocated":
        os.posix_fallocate(file, 0, SIZE * count)
    os.fsync(file)
    os.lseek(file, 0, os.SEEK_SET)
    for _ in range(count):
        started = time.perf_counter()
        os.write(file, data)
        os.fdatasync(file)
        seconds.append(time.perf_counter() - started)
    os.close(file)
    path.unlink()
    show(how, seconds)


def journaled(folder: Path, count: int) -> None:
    """Records of SIZE bytes through the pool's own writer."""
    segments, record, seconds = Segments(folder, "journal"), frames.pieces(os.urandom(SIZE)), []
    for _ in range(count):
        started = time.perf_counter()
        segments.append([record], sync=True)
        seconds.append(time.perf_counter() - started)
    segments.close()
    show("journal", seconds)


def answering(pipe: Connection) -> None:
    """The other process: a pool that only says yes, and an echo."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(len(ECHO)):
            writer.write(data)
        writer.close()

    def yes(request: object) -> Awaitable[Reply]:
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        done.set_result(Done(accepted=1))
        return done

    async def serve() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        answer = Answer("127.0.0.1")
        pipe.send((answer.url, server.sockets[0].getsockname()[1]))
        await answer.serve(yes)

    uvloop.run(serve())


async def timed(name: str, once: Callable[[], Awaitable[object]], count: int) -> None:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        await once()
        seconds.append(time.perf_counter() - started)
    show(name, seconds)


async def questions(url: str, port: int, count: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ask = Ask(url)

    async def echoed() -> None:
        writer.write(ECHO)
        await reader.readexactly(len(ECHO))

    await timed("tcp", echoed, count)
    await timed("zeromq", lambda: ask.ask(GetStatistics()), count)
    writer.close()
    ask.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", help="a folder on the disk in question; default: the system's temporary one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=600, help="hand-overs of a kind in a round")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answering, args=(theirs,), daemon=True)
    process.start()
    url, port = ours.recv()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        for _ in range(options.rounds):
            for how in ("append", "allocated", "zeros"):
                appends(Path(folder), how, options.count)
            journaled(Path(folder), options.count)
    for _ in range(options.rounds):
        uvloop.run(questions(url, port, options.count))
    process.terminate()


if __name__ == "__main__":
    main()
