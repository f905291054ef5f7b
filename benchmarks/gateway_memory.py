"""Memory of an open trajectory in the gateway: chat routes in this process, an engine and a pool that answer at once.

    python benchmarks/gateway_memory.py [--trajectories 300] [--stream]

Each trajectory has two turns of about 600 new tokens in all and 100 sampled tokens a turn. Resident memory is taken
before and after, with the tokenizer warm; the figure is the difference per trajectory.
"""

import argparse
import asyncio
import gc
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import psutil
from gateway_parts import TEMPLATE, build_model, text_of

from rlctl.gateway.calls import Calls, Counts
from rlctl.gateway.door.http import Request
from rlctl.gateway.routes.model import ModelRoutes
from rlctl.gateway.routing.upstream import Completion
from rlctl.gateway.sampling import Limits, Part, Sampled
from rlctl.gateway.sessions.pictures import Pictures
from rlctl.gateway.sessions.trajectories import Trajectories
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.template import ChatTemplate


class Pool:
    """Has every Step at once."""

    def admit(self) -> None: ...

    def submit(self, steps: list[Any]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Engine:
    """100 random tokens, told one by one where they are streamed."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    async def complete(self, uid: str, prompt_uid: str, ids: bytes, asked: Any, tell: Any, images: Any) -> Completion:
        dice = random.Random(uid)
        sampled = [dice.randrange(300, 900) for _ in range(100)]
        logprobs = [-dice.random() for _ in sampled]
        for token, logprob in zip(sampled, logprobs, strict=True) if tell else ():
            tell(Part(0, self.codec.decode([token]), [token], [logprob]))
            await asyncio.sleep(0)
        return Completion([Sampled(self.codec.decode(sampled), sampled, logprobs, "stop")], [[(0, 100)]], "http://e")


async def play(routes: ModelRoutes, number: int, stream: bool) -> None:
    messages = [{"role": "user", "content": text_of(500, number)}]
    for turn in range(2):
        body = msgspec.json.encode({"messages": messages, "max_tokens": 100, "stream": stream})
        scope = {"type": "http", "path": f"/u{number}/p/v1/chat/completions", "headers": [], "method": "POST"}
        reply = await routes.chat(Request(scope, body, asyncio.Event().wait, f"u{number}", "p"))
        said = ""
        if reply.events is None:
            said = msgspec.json.decode(reply.body)["choices"][0]["message"]["content"]
        else:
            async for event in reply.events:
                chunks = [msgspec.json.decode(line[6:]) for line in event.split(b"\n\n") if line.startswith(b"data: {")]
                said += "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"])
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text_of(100, turn)}]


async def measure(count: int, stream: bool, folder: Path) -> float:
    """KB of resident memory per trajectory."""
    codec, pool = Codec(build_model(folder / "model").to_str()), Pool()
    trajectories: Any = Trajectories(pool, lambda uid: None, 3600)  # type: ignore[arg-type]
    limits, pictures = Limits(1.0, 1.0, 128, 8000, 8192), Pictures(folder / "images", 1)
    calls = Calls(trajectories, Engine(codec), pool, codec, limits, Counts(), 60.0, pictures)  # type: ignore[arg-type]
    routes = ModelRoutes(calls, ChatTemplate(TEMPLATE, {}))
    for number in range(-60, 0):
        await play(routes, number + 10_000_000, stream)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(count):
        await play(routes, number, stream)
    gc.collect()
    return (psutil.Process().memory_info().rss - before) / count / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=300)
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        print(f"{asyncio.run(measure(options.trajectories, options.stream, Path(work))):.1f} KB a trajectory")
