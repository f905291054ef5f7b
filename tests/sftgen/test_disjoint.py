"""The real files of a preset: training, test and RL boards never meet, and prompts are those of RL, token by token."""

import json
from itertools import combinations

import numpy as np
import pytest

from rlctl.config import load
from rlctl.envs import Episode, family, instances
from rlctl.gateway.sessions.session import Session
from rlctl.gateway.text import folder
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.messages import normalised
from rlctl.gateway.text.template import ChatTemplate
from rlctl.models.load import load_tokenizer
from rlctl.models.tiny import build_tiny
from rlctl.sftgen.main import Order, generate
from rlctl.train.data.demonstrations import encode
from rlctl.train.sft import writing_of

PRESETS = ("frozenlake-cpu", "sokoban-cpu")


@pytest.fixture(scope="module", params=PRESETS)
def preset(request, tmp_path_factory):
    """(configuration, rows by file) of a preset's own demonstrations, as `rlctl up` makes them."""
    config = load([request.param], environ={}).config
    out = tmp_path_factory.mktemp("sft")
    data, env = config.sft.data, config.env[0]
    generate(Order(env, data.size, 50, env.seed, episodes=data.episodes), out, workers=2)
    rows = {name: list(map(json.loads, (out / f"{name}.jsonl").open(encoding="utf-8"))) for name in ("train", "test")}
    return config, rows


def test_no_board_is_in_two_of_train_test_and_rl(preset):
    """What the player sees at the start is compared, not the seed, nor the text that the splits are made by."""
    config, rows = preset
    env = config.env[0]
    made = family(env)

    def boards(found):
        return {Episode(env, made, one).world.render() for one in found}

    shown = {
        "train": boards(made.instance(row["seed"]) for row in rows["train"]),
        "test": boards(made.instance(row["seed"]) for row in rows["test"]),
        "rl": boards(instances(env, "train", env.instances)),
        "val": boards(instances(env, "val", config.eval[0].episodes)),
    }
    assert [len(found) for found in shown.values()] == [
        config.sft.data.size,
        50,
        env.instances,
        config.eval[0].episodes,
    ]
    for one, other in combinations(shown, 2):
        assert not shown[one] & shown[other], (one, other)


def test_every_demonstration_of_the_preset_replays_to_success_as_it_is_written(preset):
    config, rows = preset
    env = config.env[0]
    made = family(env)
    for row in [*rows["train"][:400], *rows["test"]]:
        episode = Episode(env, made, made.instance(row["seed"]))
        for message in row["messages"]:
            if message["role"] == "assistant":
                episode.feed(message["content"])
        assert episode.success and episode.messages == row["messages"]


def test_a_demonstration_has_the_tokens_that_the_gateway_would_give_the_same_episode(preset, tmp_path):
    config, rows = preset
    build_tiny(tmp_path / "model", config.model.tiny, config.model.max_context, 0)
    read = folder.read(str(tmp_path / "model"))
    codec, template = Codec(read.tokenizer_json), ChatTemplate(read.chat_template, read.special_tokens)
    writing = writing_of(load_tokenizer(str(tmp_path / "model")))
    for row in rows["train"][:100]:
        session, ids = Session("one"), b""
        for place, message in enumerate(row["messages"]):
            if message["role"] != "assistant":
                continue
            prompt = session.chat_prompt(normalised(row["messages"][:place]), "", template.render, codec)
            assert prompt.fork == ""
            sampled = codec.encode(message["content"]) + np.int32(writing.end_id).tobytes()
            session.commit(prompt, session.reserve(prompt), [(sampled, message["content"], message)])
            ids = prompt.ids + sampled
        (sample,) = encode("one", row["messages"], writing)
        assert sample.token_ids.tolist() == np.frombuffer(ids, np.int32).tolist()
