"""A tiny model built once, recorded batches, and real little servers that play the engine, the pool and rollout."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.config import Config
from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny
from rlctl.wire.arrays import pack_floats, pack_ids
from rlctl.wire.messages import Batch
from rlctl.wire.samples import Facts, Group, Step, Trajectory

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tiny(folder, Tiny(hidden_size=64, layers=2, heads=2, mlp=64), max_context=256, seed=0)
    return folder


def config_for(model_dir: Path, run_dir: Path, **sections: Any) -> Config:
    """A configuration with `section={...}` overrides."""
    tree: dict[str, Any] = {
        "run": {"dir": str(run_dir), "steps": 5},
        "model": {"path": str(model_dir), "max_context": 256},
        "train": {"groups_per_step": 4, "minibatches": 2, "micro_tokens": 256, "optim": {"lr": 1e-3}},
        "rollout": {"group_size": 4, "max_tokens": 16},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
    return Config.model_validate(tree)


def random_step(
    rng: np.random.Generator, uid: str, index: int, parent: int, prompt: np.ndarray | int, response: int
) -> Step:
    """`prompt`: its tokens, or how many random ones."""
    return Step(
        trajectory_uid=uid,
        step_index=index,
        prompt_ids=pack_ids(rng.integers(0, 300, prompt) if isinstance(prompt, int) else prompt),
        response_ids=pack_ids(rng.integers(0, 300, response)),
        logprobs=pack_floats(-rng.uniform(4, 7, response)),
        versions=[(0, response)],
        parent=parent,
    )


def random_batch(seed: int, groups: int = 4, size: int = 4, turns: int = 3, share: int = 0) -> Batch:
    """Groups of multi-turn trajectories of random tokens with 0/1 rewards; some groups may be without signal.

    `share`: tokens of a first prompt that is the same for the whole group; trajectories of three turns fork then, the
    third extending the first.
    """
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        members = []
        first = rng.integers(0, 300, share)
        for t in range(size):
            uid = f"b{seed}-g{g}-t{t}"
            count = int(rng.integers(1, turns + 1))
            steps = []
            for i in range(count):
                parent = 0 if share and i == 2 else i - 1
                prompt = first if share and not i else int(rng.integers(2, 20))
                steps.append(random_step(rng, uid, i, parent, prompt, int(rng.integers(1, 6))))
            reward = float(t % 2 if g == 0 else rng.integers(0, 2))
            members.append(
                Trajectory(
                    uid, f"g{g}", "train", steps, "complete", Facts(success=reward > 0), reward=reward, env="fake"
                )
            )
        made.append(Group(prompt_uid=f"b{seed}-g{g}", env="fake", trajectories=members))
    return Batch(lease=f"lease-{seed}", groups=made)


class FakeEngine:
    """`PUT /policy` as an engine answers it: reads PUBLISHED.json, keeps what it was told; `faults` come first."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.faults: list[int] = []
        self.lie: dict[str, Any] = {}
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if engine.faults:
                    self.send_error(engine.faults.pop(0), "asked to fail")
                    return
                published = json.loads((Path(body["path"]) / "PUBLISHED.json").read_text())["sha256"]
                (checksum,) = (published[name] for name in published if name.endswith("model.safetensors"))
                reply = {"version": body["version"], "checksum": checksum, "seconds": 0.0}
                engine.told.append({**body, **reply})
                data = json.dumps({**reply, **engine.lie}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    server = FakeEngine()
    yield server
    server.close()


class FakePeer:
    """A real ZeroMQ Answer socket in a thread; `handle(request) -> reply` is its mind, `seen` what it was asked."""

    def __init__(self, handle: Callable[[Any], Any]) -> None:
        from rlctl.wire.sockets import Answer

        self.seen: list[Any] = []
        ready = threading.Event()

        async def handler(request: Any) -> Any:
            self.seen.append(request)
            return handle(request)

        async def serve() -> None:
            answer = Answer("127.0.0.1")
            self.port = answer.port
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            ready.set()
            try:
                await answer.serve(handler)
            except asyncio.CancelledError:
                pass
            finally:
                answer.close()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        ready.wait(10)

    def close(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Six recorded batches."""
    from .running import record

    return record(tmp_path / "batches", 6)


@pytest.fixture
def world(engine: FakeEngine) -> Iterator[Any]:
    """A `running.World` around the engine."""
    from .running import World

    made = World(engine)
    yield made
    made.close()
