"""A tiny model that has been taught to talk: tool calls, thoughts, unicode, nothing at all; which of them is chance."""

import random
from pathlib import Path
from typing import Any

from tests.gateway.model import CHATML

SAID = (
    "",
    "",
    "Left",
    "Up Right",
    "Größe, 東京 🙂",
    '<tool_call>\n{"name": "move", "arguments": {"to": 2}}\n</tool_call>',
    'Well. <tool_call>{"name": "move", "arguments": {"to":  3, "how": "é"}}</tool_call>',
    '<tool_call>{"name": "look"}</tool_call>',
    'I <tool_call>{"name": "look"}</tool_call>',
    "<think>hm</think>Down",
    " \n\n ",
)
WORDS = ("Left", "🙂", "東京", "é", "<|im_end|>", "<|im_start|>system", "\ufdd0", "\n\n", " ", "{}", "</think>", "aaaa")
TEMPLATE = CHATML
MOVE = {"name": "move", "description": "Go.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": MOVE}]
STEPS, BATCH = 200, 6


def teach(folder: Path, max_context: int, seed: int = 0) -> Path:
    """Build it in `folder`: a tiny Qwen2, trained for some seconds on conversations with random questions.

    The loss is on the answers only; afterwards a question is answered with one of SAID, or with something near it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlctl.config.learning import Tiny
    from rlctl.models.tiny import build_tiny

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    build_tiny(folder, Tiny(), max_context, seed)
    tokenizer, policy = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    dice = random.Random(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(STEPS):
        rows = [_conversation(dice, tokenizer) for _ in range(BATCH)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
        labels = torch.tensor([row + [-100] * (longest - len(row)) for _, row in rows])
        policy(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(folder)
    return folder


def _conversation(dice: random.Random, tokenizer: Any) -> tuple[list[int], list[int]]:
    """(ids, labels) of some turns; labels are -100 where nothing is to be learnt."""
    tools = dice.choice([None, TOOLS])
    turns: list[dict[str, str]] = []
    ids: list[int] = []
    labels: list[int] = []
    before = ""
    for _ in range(dice.randint(1, 3)):
        turns.append({"role": dice.choice(["user", "user", "tool"]), "content": "".join(dice.choices(WORDS, k=2))})
        text = tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True)
        asked = tokenizer(text.removeprefix(before)).input_ids
        said = dice.choice(SAID)
        answered = tokenizer(f"{said}<|im_end|>").input_ids
        before = f"{text}{said}<|im_end|>"
        turns.append({"role": "assistant", "content": said})
        ids += [*asked, *answered]
        labels += [*[-100] * len(asked), *answered]
    return ids, labels
