"""`rlctl up` with the pool's journal in a Redis."""

import json
from pathlib import Path

import pytest

from tests.e2e.running import SMALL, finish, left_running, start
from tests.pool.redis_server import RedisServer, needs_redis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_redis]


def test_a_run_over_redis_adds_up_and_keeps_its_password_to_itself(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis", requirepass="s3cret").start()
    run_dir = tmp_path / "run"
    url = redis.url.replace("redis://", "redis://:s3cret@")
    try:
        code, out, err = finish(start(run_dir, "--json", settings=(*SMALL, f"pool.url={url}")))
        assert code == 0, err[-3000:]
        samples = json.loads(out)["samples"]
        assert samples["created"] == sum(number for name, number in samples.items() if name != "created")
        assert samples["trained"] + samples["zero_variance"] >= 3 * 4 * 4
        assert "owns run frozenlake-cpu-run-" in (run_dir / "logs" / "pool.log").read_text()
        assert not list((run_dir / "pool").glob("journal-*"))
        for file in run_dir.rglob("*"):
            assert not file.is_file() or b"s3cret" not in file.read_bytes(), file
        assert "s3cret" not in out + err
        code, out, err = finish(start(run_dir, "--resume", settings=(), preset=str(run_dir)))
        assert code == 2, "the password is not in resolved.toml"
        assert "give the address again" in err
        again = (f"pool.url={url}", "run.steps=4")
        code, out, err = finish(start(run_dir, "--resume", "--json", settings=again, preset=str(run_dir)))
        assert code == 0, err[-3000:]
        assert json.loads(out)["samples"]["created"] > samples["created"], "it goes on with the samples in Redis"
        assert left_running(run_dir) == []
    finally:
        redis.stop()
