"""Sampling for a whole batch at once, with the log-probability under exactly the distribution sampled from."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Settings:
    """Per row `[B]`, on the device of the logits."""

    temperature: torch.Tensor
    """0: greedy."""
    top_p: torch.Tensor
    top_k: torch.Tensor
    """0: all."""
    min_p: torch.Tensor
    filtered: torch.Tensor | None
    """Rows `[F]` (int64) whose distribution is cut; None: none of them."""
    plain: bool = False
    """Whether every temperature is 1."""


def processed_logprobs(logits: torch.Tensor, settings: Settings) -> torch.Tensor:
    """log p of the distribution that is sampled from, float32 `[B, V]`.

    p = softmax(logits / temperature), cut by min_p, top_k and top_p in this order (that of vLLM), then renormalised.
    A greedy row has the uncut distribution at temperature 1.
    """
    if settings.plain and settings.filtered is None:
        return logits.float().log_softmax(-1)
    greedy = settings.temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, settings.temperature)[:, None]
    if settings.filtered is not None:
        rows = settings.filtered
        cut = _cut(scaled[rows], settings.top_p[rows], settings.top_k[rows], settings.min_p[rows])
        scaled = scaled.index_copy(0, rows, torch.where(greedy[rows][:, None], scaled[rows], cut))
    return scaled.log_softmax(-1)


def _cut(scaled: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Logits `[F, V]` with -inf at the tokens left out.

    min_p: less likely than min_p times the most likely one. top_k: not among the k most likely. top_p: not in the
    smallest set of most likely tokens whose probability reaches top_p (arXiv 1904.09751); the most likely always stays.
    """
    out = scaled.softmax(-1)
    scaled = scaled.masked_fill(out < min_p[:, None] * out.amax(-1, keepdim=True), -torch.inf)
    ordered, order = scaled.sort(-1, descending=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)
    ordered = ordered.masked_fill((rank >= top_k[:, None]) & (top_k[:, None] > 0), -torch.inf)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (rank > 0), -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, ordered)


def sample(logits: torch.Tensor, settings: Settings, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `[B]` and their log-probabilities `[B]`, by inverse transform of `uniform [B]` (float64 in [0, 1)).

    One uniform number decides a token, so a row's draw depends on its own number only. Tokens with probability 0 are
    never drawn: the first index whose cumulative probability *exceeds* the draw has a positive one.
    """
    logprobs = processed_logprobs(logits, settings)
    cumulative = logprobs.double().exp_().cumsum_(-1)
    total = cumulative[:, -1:]
    draw = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, draw, right=True)[:, 0]
    tokens = drawn if settings.plain else torch.where(settings.temperature == 0, logprobs.argmax(-1), drawn)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
