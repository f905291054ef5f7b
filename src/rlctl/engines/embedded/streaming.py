"""`stream: true`: server-sent events, as vLLM's completions chunks with token ids."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rlctl.engines.embedded import completions
from rlctl.engines.embedded.completions import Texts, encode
from rlctl.engines.embedded.sequences import Sequence
from rlctl.engines.embedded.serving import Serving

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def stream(serving: Serving, sequences: list[Sequence], texts: Texts, base: dict[str, Any], send: Send) -> None:
    """Send each choice's new tokens as they come; the last chunk has usage and `policy_versions`, then `[DONE]`.

    Text that a later token may still change (half a character) or take back (the beginning of a stop text) waits for
    the next chunk; ids and logprobs never wait.
    """
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def tell(_: Sequence) -> None:
        loop.call_soon_threadsafe(news.set)

    for sequence in sequences:
        sequence.on_token = tell
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    work = asyncio.ensure_future(serving.generate(sequences))
    work.add_done_callback(lambda _: news.set())
    sent = [(0, 0)] * len(sequences)
    try:
        while True:
            await news.wait()
            news.clear()
            over = work.done()
            for index, sequence in enumerate(sequences):
                count = len(sequence.response)
                if count > sent[index][0]:
                    chunk, characters = _chunk(sequence, index, texts, count, *sent[index])
                    sent[index] = (count, characters)
                    await _event(send, encode({**base, "choices": [chunk]}))
            if over:
                break
        await work
    finally:
        work.cancel()
    tail = {"choices": [], "usage": completions.usage(sequences)}
    tail["policy_versions"] = completions.versions_header(sequences)
    await _event(send, encode({**base, **tail}))
    await _event(send, b"[DONE]")
    await send({"type": "http.response.body", "body": b""})


def _chunk(
    sequence: Sequence, index: int, texts: Texts, count: int, tokens: int, characters: int
) -> tuple[dict[str, Any], int]:
    """Tokens `tokens:count` and the text after `characters`; also how many characters are out then."""
    last = sequence.finish if count == len(sequence.response) else ""
    text = texts.decode(sequence.response[:count])
    if last:
        safe = len(text) if sequence.text is None else len(sequence.text)
    else:
        safe = len(text) - _unsure(text, sequence.sampling.stop)
    safe = max(safe, characters)
    chunk = {
        "index": index,
        "text": text[characters:safe],
        "token_ids": sequence.response[tokens:count],
        "logprobs": {"token_logprobs": sequence.logprobs[tokens:count]},
        "finish_reason": last or None,
    }
    return chunk, safe


def _unsure(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end of `text` that may change: replacement marks, or the beginning of a stop text."""
    unsure = len(text) - len(text.rstrip("\ufffd"))
    for stop in stops:
        for length in range(len(stop) - 1, 0, -1):
            if text.endswith(stop[:length]):
                unsure = max(unsure, length)
                break
    return unsure


async def _event(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
