"""Tokenizer of the tiny model: byte-level BPE whose merges are built word by word, so what must be one token is one.

Training BPE on a corpus only makes short words *likely* to be single tokens. Here each word of WORDS is encoded with
the merges so far and the pieces left are joined from left to right. An earlier word stays whole when later merges come,
because BPE always applies the earliest merge that fits. 256 bytes, the merges and 7 marks are 306 tokens.
"""

from transformers import AddedToken, Qwen2Tokenizer

END_OF_TEXT, TURN_BEGIN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<answer>", "</answer>", "<think>", "</think>")
CELLS = ("P", "_", "O", "G", "X", "S", "#", "√")
ACTIONS = ("Up", "Down", "Left", "Right")
WORDS = (*ACTIONS, *CELLS, *(f" {word}" for word in (*ACTIONS, *CELLS)), "||", " ||", "user", "assistant", "system")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML without a default system turn; what the model said is marked for transformers' assistant mask."""


def byte_symbols() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte (its `bytes_to_unicode`): printable Latin-1 stands for itself."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merges_for(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """BPE merges under which every one of `words` is a single token."""
    symbols = byte_symbols()
    merges: list[tuple[str, str]] = []
    for word in words:
        pieces = [symbols[byte] for byte in word.encode()]
        for left, right in merges:
            pieces = _join(pieces, left, right)
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = _join(pieces, *merges[-1])
    return merges


def _join(pieces: list[str], left: str, right: str) -> list[str]:
    joined: list[str] = []
    for piece in pieces:
        if joined and joined[-1] == left and piece == right:
            joined[-1] = left + right
        else:
            joined.append(piece)
    return joined


def build_tokenizer(max_context: int) -> Qwen2Tokenizer:
    """The tiny model's tokenizer; the same on every machine.

    Qwen2's class, because transformers gives that to every Qwen2 model: tokenizer.json read without transformers
    (as the gateway may) then splits text in the same way.
    """
    merges = merges_for(WORDS)
    symbols = [*byte_symbols().values(), *(left + right for left, right in merges)]
    tokenizer = Qwen2Tokenizer(
        vocab={symbol: i for i, symbol in enumerate([*symbols, END_OF_TEXT, TURN_BEGIN, TURN_END])},
        merges=merges,  # type: ignore[arg-type]  # pairs are what the BPE model takes
        unk_token=END_OF_TEXT,
        bos_token=TURN_BEGIN,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer
