"""The template and the tokenizer give what transformers gives, without transformers."""

from pathlib import Path

import pytest
from model import CHATML, FORGETFUL, build

from rlctl.gateway.text import folder
from rlctl.gateway.text.codec import Codec
from rlctl.gateway.text.template import ChatTemplate, TemplateError
from rlctl.wire.arrays import unpack_ids

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Sei kurz."}, {"role": "user", "content": "東京 🙂\n\n  <b>&amp;</b>"}],
    [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "w", "arguments": {"city": "Zürich", "n": [1]}}}],
        },
        {"role": "tool", "content": "snow"},
        {"role": "assistant", "content": "<think>cold</think>Snow."},
        {"role": "user", "content": "thanks"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "w", "description": "Größe <x>", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("source", [CHATML, FORGETFUL])
def test_rendering_equals_transformers(tmp_path: Path, source: str, conversation: list, tools: list | None) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(build(tmp_path / "m", source))
    files = folder.read(str(tmp_path / "m"))
    text = ChatTemplate(files.chat_template, files.special_tokens).render(conversation, tools)
    settings = {"tools": tools, "add_generation_prompt": True}
    assert text == theirs.apply_chat_template(conversation, tokenize=False, **settings)
    ids = theirs.apply_chat_template(conversation, tokenize=True, return_dict=False, **settings)
    assert unpack_ids(Codec(files.tokenizer_json).encode(text)).tolist() == list(ids)


def test_special_tokens_loop_controls_and_the_filters_are_there() -> None:
    source = (
        "{{ eos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m | tojson(indent=1) }}{% endgeneration %}{% endfor %}{{ strftime_now('%Y')|length }}"
    )
    text = ChatTemplate(source, {"eos_token": "<E>"}).render([{"role": "user", "content": "é<"}, {"role": "x"}])
    assert text == '<E>{\n "role": "user",\n "content": "é<"\n}4'


def test_a_template_may_refuse_and_the_sandbox_holds() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}).render([])
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}).render([])


def test_a_template_may_be_a_named_list_or_a_file_of_its_own(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert folder.read(str(tmp_path)).chat_template == "own file"
    (tmp_path / "chat_template.jinja").unlink()
    config = '{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    assert folder.read(str(tmp_path)).chat_template == "d"
