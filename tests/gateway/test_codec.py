"""Ids that are kept are the ids that encoding gives, and what is kept is bounded."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model import CHATML, build

from rlctl.gateway.text import codec, folder
from rlctl.gateway.text.codec import Codec


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("codec") / "m"
    build(path, CHATML)
    return folder.read(str(path)).tokenizer_json


def test_a_long_text_asked_for_again_has_the_ids_it_had(tokenizer: str) -> None:
    kept = Codec(tokenizer)

    @settings(deadline=None)
    @given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.integers(0, 400))
    def check(pieces: list[str], padding: int) -> None:
        for piece in pieces * 2:
            text = kept.shield("lake " * padding + piece)
            assert kept.encode(text) == Codec.encode_new(kept, text)

    check()


def test_the_texts_used_last_are_kept_up_to_the_limit(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "KEPT_CHARS", 3000)
    one = Codec(tokenizer)
    first, *others = (f"{number} " + "ice " * 240 for number in range(10))
    encoded: list[str] = []
    plain = one.encode_new
    monkeypatch.setattr(one, "encode_new", lambda text: encoded.append(text) or plain(text))
    for other in others:
        one.encode(first)
        one.encode(other)
    assert encoded == [first, *others], "the one that is asked for again and again was encoded again"
    one.encode(others[0])
    assert encoded[-1] == others[0] and len(encoded) == 11, "the oldest was kept beyond the limit"
