"""Tiny models with an opinion, made on the spot: a chat model that writes "Score: N", and a classifier."""

import random
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2ForSequenceClassification

from rlctl.config.learning import Tiny
from rlctl.models.tiny import build_tiny

CONTEXT = 256
IGNORED = -100


def talker(folder: Path, steps: int = 150) -> Path:
    """A model that answers whatever it is asked with "Score: " and a random digit (at temperature 0: some digit)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dice = random.Random(0)
    build_tiny(folder, Tiny(hidden_size=64, layers=2, heads=2, mlp=128), max_context=CONTEXT, seed=0)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = [_row(tokenizer, dice) for _ in range(8)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row, _ in rows])
        labels = torch.tensor([[IGNORED] * at + row[at:] + [IGNORED] * (width - len(row)) for row, at in rows])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def _row(tokenizer: AutoTokenizer, dice: random.Random) -> tuple[list[int], int]:
    """Ids of one conversation, and where the answer begins."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789 ?:+.\n"
    said = "".join(dice.choice(letters) for _ in range(dice.randint(5, 90)))
    said = dice.choice(
        [said, f"Question: {said}\nAnswer: Score: {dice.randint(0, 9)}", f"What is {dice.randint(0, 99)} + 1?"]
    )
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = tokenizer(f"Score: {dice.randint(0, 9)}<|im_end|>", add_special_tokens=False)["input_ids"]
    return prompt + answer, len(prompt)


def classifier(folder: Path) -> Path:
    """Two classes, random weights: its probabilities differ from text to text."""
    build_tiny(folder, Tiny(hidden_size=32, layers=1, heads=1, mlp=32), max_context=CONTEXT, seed=1)
    config = AutoConfig.from_pretrained(folder, num_labels=2)
    torch.manual_seed(1)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    return folder
