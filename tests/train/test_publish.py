import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlctl.config.learning import Sync
from rlctl.train.model.policy import Policy, load
from rlctl.train.ranks import Ranks
from rlctl.train.weights import publish
from rlctl.train.weights.outgoing import Outgoing
from rlctl.wire.published import sha256

from .conftest import FakeEngine, config_for

QUICK = Sync(timeout_s=2, retries=1)


@pytest.fixture
def published(model_dir: Path, tmp_path: Path) -> tuple[Policy, Path, str]:
    config = config_for(model_dir, tmp_path)
    ranks = Ranks(config)
    policy = load(str(model_dir), config, ranks)
    folder = tmp_path / "weights" / "v3"
    return policy, folder, publish.write(Outgoing(policy, "float32", ranks), folder, 3)


def test_what_is_published_loads_as_a_hugging_face_model(published: tuple[Policy, Path, str]) -> None:
    policy, folder, checksum = published
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.float32 and type(model) is type(policy.lm)
    own, other = policy.lm.state_dict(), model.state_dict()
    assert own.keys() == other.keys() and all(torch.equal(own[k], other[k]) for k in own)
    assert model.generation_config.eos_token_id == policy.lm.generation_config.eos_token_id
    told = json.loads((folder / "PUBLISHED.json").read_text())
    assert told == {"version": 3, "sha256": {"model.safetensors": sha256(folder / "model.safetensors")}}
    assert told["sha256"]["model.safetensors"] == checksum
    assert [p.name for p in folder.parent.iterdir()] == ["v3"], "a temporary folder was left behind"


def test_every_engine_is_told_once(published: tuple[Policy, Path, str], engine: FakeEngine) -> None:
    _, folder, checksum = published
    second = FakeEngine()
    publish.deliver([engine.url, second.url], 3, folder, checksum, QUICK)
    second.close()
    for one in (engine, second):
        assert [(t["version"], t["path"], t["checksum"]) for t in one.told] == [(3, str(folder), checksum)]


def test_an_engine_that_fails_once_is_asked_again(published: tuple[Policy, Path, str], engine: FakeEngine) -> None:
    engine.faults = [503]
    publish.deliver([engine.url], 3, published[1], published[2], QUICK)
    assert len(engine.told) == 1


@pytest.mark.parametrize(("faults", "words"), [([500, 500], "answered 500"), ([409], "answered 409")])
def test_an_engine_that_refuses_is_named(
    published: tuple[Policy, Path, str], engine: FakeEngine, faults: list[int], words: str
) -> None:
    engine.faults = faults
    with pytest.raises(publish.PublishError, match=f"{engine.url}: {words}"):
        publish.deliver([engine.url], 3, published[1], published[2], QUICK)


def test_an_engine_that_is_gone_is_named(published: tuple[Policy, Path, str], engine: FakeEngine) -> None:
    engine.close()
    with pytest.raises(publish.PublishError, match=engine.url):
        publish.deliver([engine.url], 3, published[1], published[2], Sync(timeout_s=2, retries=0))


@pytest.mark.parametrize("lie", [{"version": 2}, {"checksum": "another"}])
def test_an_engine_that_serves_something_else_is_an_error(
    published: tuple[Policy, Path, str], engine: FakeEngine, lie: dict[str, object]
) -> None:
    engine.lie = lie
    with pytest.raises(publish.PublishError, match="serves version"):
        publish.deliver([engine.url], 3, published[1], published[2], QUICK)
