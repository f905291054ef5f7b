"""Sequence classification with transformers: a score for each text."""

from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlctl.errors import RlctlError


class Classifier:
    """A reward model: one label gives its logit, several labels give the probability of the last one."""

    def __init__(self, model: str, batch_size: int, device: str = "") -> None:
        """`model`: folder or hub id; RlctlError when it cannot be loaded."""
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(model)
            self.model = AutoModelForSequenceClassification.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise RlctlError(f"cannot load the classifier {model!r}: {error}") from error
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device).eval()
        self.batch_size = batch_size
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.model.config.pad_token_id is None:
            self.model.config.pad_token_id = self.tokenizer.pad_token_id

    def scores(self, texts: Sequence[str]) -> list[float]:
        """`[N]` texts -> `[N]` scores; similar lengths share a batch; a text longer than the model's context loses its
        beginning (the answer stands at the end).
        """
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        self.tokenizer.truncation_side = "left"
        longest = getattr(self.model.config, "max_position_embeddings", self.tokenizer.model_max_length)
        found = [0.0] * len(texts)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            batch = self.tokenizer(
                [texts[i] for i in chosen], padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
            with torch.inference_mode():
                inputs = {k: v.to(self.device) for k, v in batch.items() if k in ("input_ids", "attention_mask")}
                logits = self.model(**inputs).logits.float()
            values = logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, -1]
            for i, value in zip(chosen, values.tolist(), strict=True):
                found[i] = value
        return found
