"""The model built on the spot: same seed same bytes, and a tokenizer that gives cells and actions one token each."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from rlctl.config.learning import Tiny
from rlctl.errors import ConfigError
from rlctl.models.load import load_policy, load_tokenizer
from rlctl.models.paths import check_model_path
from rlctl.models.tiny import build_tiny
from rlctl.models.vocabulary import ACTIONS, CELLS, WORDS, build_tokenizer, merges_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny(path, Tiny(), max_context=128, seed=1)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    build_tiny(tmp_path / "again", Tiny(), max_context=128, seed=1)
    build_tiny(tmp_path / "other", Tiny(), max_context=128, seed=2)
    first, again, other = contents(folder), contents(tmp_path / "again"), contents(tmp_path / "other")
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_building_leaves_torchs_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    build_tiny(tmp_path / "m", Tiny(layers=1), max_context=64, seed=3)
    assert torch.equal(torch.rand(1), expected)


def test_the_model_has_the_shape_asked_for_and_stops_at_the_end_of_a_turn(folder: Path) -> None:
    model = load_policy(str(folder))
    tokenizer = load_tokenizer(str(folder))
    assert (model.config.hidden_size, model.config.num_hidden_layers, model.config.num_attention_heads) == (64, 3, 2)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("init_std", [0.02, 0.125])
def test_the_first_weights_have_the_deviation_asked_for(tmp_path: Path, init_std: float) -> None:
    build_tiny(tmp_path / "m", Tiny(init_std=init_std), max_context=64, seed=3)
    model = load_policy(str(tmp_path / "m"))
    for weight in (model.model.embed_tokens.weight, model.model.layers[2].mlp.up_proj.weight):
        assert weight.std().item() == pytest.approx(init_std, rel=0.03)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_of_the_vocabulary_is_one_token(folder: Path, word: str) -> None:
    assert len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(word).ids) == 1


def test_a_grid_row_has_one_token_per_cell(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    row = "".join(f" {cell}" for cell in CELLS)
    assert len(tokenizer.encode(row)) == len(CELLS)
    assert len(tokenizer.encode(f"{row}\n{row}")) == 2 * len(CELLS) + 1


@pytest.mark.parametrize("action", ACTIONS)
def test_an_answer_is_three_tokens_and_the_end(folder: Path, action: str) -> None:
    tokenizer = load_tokenizer(str(folder))
    answer = f"<answer>{action}</answer><|im_end|>"
    ids = tokenizer.encode(answer)
    assert [tokenizer.decode([i]) for i in ids] == ["<answer>", action, "</answer>", "<|im_end|>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"<answer>{action}</answer>"


def test_any_text_survives_the_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    for text in ("naïve café\t 12 + 34 = 46\n\n", "日本語 √ ||", "##__## P", "Righty Upper"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_is_chatml_without_a_system_turn_and_marks_what_the_model_said(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    chat = [{"role": "user", "content": " P _"}, {"role": "assistant", "content": "<answer>Up</answer>"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<|im_start|>user\n P _<|im_end|>\n<|im_start|>assistant\n<answer>Up</answer><|im_end|>\n"
    marked = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    said = [i for i, own in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if own]
    assert tokenizer.decode(said) == "<answer>Up</answer><|im_end|>"


def test_a_prompt_of_turns_extends_the_tokens_sampled_before(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    chat = [{"role": "user", "content": " P _"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    sampled = tokenizer.encode("<answer>Up</answer><|im_end|>")
    chat += [{"role": "assistant", "content": "<answer>Up</answer>"}, {"role": "user", "content": " _ P"}]
    following = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert following[: len(prompt) + len(sampled)] == prompt + sampled


def test_later_words_do_not_break_earlier_ones() -> None:
    assert merges_for(("ab", "abc", "bc")) == [("a", "b"), ("ab", "c"), ("b", "c")]
    assert len(build_tokenizer(64)) == 306


def test_a_path_that_is_not_there_is_a_clear_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_model_path(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model_path(str(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="not a folder"):
        check_model_path(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="no such folder"):
        load_policy(str(tmp_path / "nowhere"))


def test_a_folder_that_holds_no_model_is_a_clear_config_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_model_path(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(str(tmp_path))


def test_checking_a_path_needs_no_torch() -> None:
    code = "import sys, rlctl.models.paths; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
