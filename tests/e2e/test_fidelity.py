"""Token fidelity through the real processes: what is trained is what the engine sampled, in the context it saw."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny
from rlctl.train.data.samples import TrainSample, build
from rlctl.wire.messages import Ack, FetchBatch, SetPolicyVersion
from rlctl.wire.ports import free_ports
from rlctl.wire.sockets import AskBlocking
from tests.e2e.recorder import recording
from tests.e2e.running import command, left_running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def trained_spans(sample: TrainSample) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """(context, response, logprobs) of each run of trainable tokens."""
    runs = np.split(np.arange(sample.trainable), np.flatnonzero(np.diff(sample.places) > 1) + 1)
    ids, places = sample.token_ids.tolist(), sample.places
    return [
        (tuple(ids[: places[run[0]]]), tuple(ids[i] for i in places[run]), tuple(sample.logprobs[run].tolist()))
        for run in runs
    ]


@pytest.mark.parametrize(("context", "wanted", "longest"), [("full", 300, 5), ("last", 1100, 3), ("summary", 900, 3)])
def test_every_trained_token_is_the_engines_with_its_logprob_and_context(
    tmp_path: Path, context: str, wanted: int, longest: int
) -> None:
    model, engine_dir, run_dir = tmp_path / "model", tmp_path / "engine", tmp_path / "run"
    build_tiny(model, Tiny(), max_context=512, seed=3)
    engine_port, pool_port = free_ports(2)
    settings = (
        f"model.path={model}",
        "model.init=''",
        "sft.max_steps=0",
        "rollout.group_size=4",
        "pool.max_staleness=8",
        f"env.0.context={context}",
        "env.0.context_turns=2",
    )
    engine = subprocess.Popen(
        [sys.executable, "-m", "rlctl", "engine", "--config", "frozenlake-cpu"]
        + [
            w
            for s in (*settings, f"run.dir={engine_dir}", f'engine.urls=["http://127.0.0.1:{engine_port}"]')
            for w in ("-s", s)
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    up = None
    try:
        wait_for(lambda: (engine_dir / "components" / "engine-0.json").exists(), 60, "the engine")
        with recording(f"http://127.0.0.1:{engine_port}") as witness:
            up = subprocess.Popen(
                command(
                    run_dir,
                    "--only",
                    "pool,gateway,reward,rollout",
                    settings=(*settings, f'engine.urls=["{witness.url}"]', f"pool.port={pool_port}"),
                ),
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            pool = AskBlocking(f"tcp://127.0.0.1:{pool_port}")
            pool.ask(SetPolicyVersion(0), timeout_s=60)
            samples = []
            deadline = time.monotonic() + 120
            while len(samples) < wanted and time.monotonic() < deadline:
                batch = pool.ask(FetchBatch(groups=8, wait_s=5, lease=f"t{len(samples)}"), timeout_s=30)
                for group in batch.groups:
                    for trajectory in group.trajectories:
                        samples += build(trajectory.uid, trajectory.steps)
                uids = [t.uid for group in batch.groups for t in group.trajectories]
                if uids:
                    pool.ask(Ack(batch.lease, dict.fromkeys(uids, "trained")))
            assert len(samples) >= wanted
            up.send_signal(signal.SIGINT)
            assert up.wait(30) == 130
            recorded = Counter((call.context, call.response, call.logprobs) for call in witness.calls)
    finally:
        for process in (up, engine):
            if process and process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(30)
    spans = [span for sample in samples for span in trained_spans(sample)]
    assert len(spans) > 1000 and max(len(trained_spans(sample)) for sample in samples) >= longest
    exact = Counter(
        (context, response, tuple(np.float32(logprobs).tolist())) for context, response, logprobs in recorded.elements()
    )
    missing = Counter(spans) - exact
    assert not missing, f"{missing.total()} of {len(spans)} trained responses differ from what the engine sampled"
    assert left_running(run_dir) == []
