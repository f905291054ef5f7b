"""What a publication costs, whole weights beside LoRA's adapters: bytes, seconds to write and to read in an engine.

    python benchmarks/adapters.py [--hidden 512 --layers 8 --rank 16 --repeats 5]

The trainer's and the embedded engine's own code on a random Qwen2 in float32, one thread; the best of the repeats. The
first reading of adapters also verifies the base's sha256 and is given by itself.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rlctl.config import Config
from rlctl.config.learning import Tiny
from rlctl.engines.embedded.weights import Reader
from rlctl.models.tiny import build_tiny
from rlctl.train.model.policy import load
from rlctl.train.ranks import Ranks
from rlctl.train.weights import publish
from rlctl.train.weights.base import base_of
from rlctl.train.weights.outgoing import Outgoing


def timed(action: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return seconds


def measured(folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    tiny = Tiny(hidden_size=options.hidden, layers=options.layers, heads=8, mlp=3 * options.hidden)
    build_tiny(folder / "model", tiny, max_context=128, seed=0)
    config = Config.model_validate(
        {
            "run": {"dir": str(folder)},
            "model": {"path": str(folder / "model")},
            "train": {"lora": {"rank": options.rank}},
        }
    )
    ranks = Ranks(config)
    policy = load(config.model.path, config, ranks)
    began = time.perf_counter()
    base = base_of(policy, config, config.model.path, ranks)
    rows: list[dict[str, object]] = [{"what": "finding the base", "seconds": time.perf_counter() - began}]
    outgoing = lambda: Outgoing(policy, "float32", ranks, base)  # noqa: E731  (gathers its weights once)
    return [*rows, *(published(outgoing, folder / name, options.repeats) for name in ("whole", "adapters"))]


def published(outgoing: Callable[[], Outgoing], out: Path, repeats: int) -> dict[str, object]:
    """One way of publishing, written and read again."""
    written = timed(lambda: publish.write(outgoing(), out, 1, out.name == "whole"), repeats)
    reader = Reader()
    read = timed(lambda: reader.read(out, 1), repeats + 1)
    times = {"write_s": min(written), "first_read_s": read[0], "read_s": min(read[1:])}
    return {"what": out.name, "bytes": sum(file.stat().st_size for file in out.iterdir()), **times}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("hidden", 512), ("layers", 8), ("rank", 16), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for row in measured(Path(folder), parser.parse_args()):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
