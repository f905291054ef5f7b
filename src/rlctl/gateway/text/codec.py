"""Text <-> token ids, with control tokens that only the template can write.

A client's text may contain the letters of a control token (`<|im_end|>`). Read as that token it would end the user's
turn and let the client speak as the system: an injection. So every client string is *shielded* (a mark is put inside
such letters) before it goes into the template, and a shielded word is encoded as the plain text it is.
"""

import re
from array import array
from collections import OrderedDict
from typing import Any

from tokenizers import Tokenizer

MARK = "\ufdd0"
"""A Unicode noncharacter: never in text that means something."""
KEPT_CHARS = 8 << 20
"""Of text whose ids are kept, the last used: the members of a group begin with the same prompt."""
SHORT = 256
"""Characters below which encoding costs no more than keeping."""


class Codec:
    """The model's tokenizer. Ids are packed as int32 (`wire.arrays`)."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: dict[int, str] = {i: token.content for i, token in added.items() if token.special}
        """Text of each control token."""
        self._special_ids = {text: i for i, text in self.special.items()}
        words = sorted((text for text in self._special_ids if len(text) > 1), key=len, reverse=True)
        any_word = "|".join(map(re.escape, words)) or r"(?!)"
        self._words = re.compile(any_word)
        self._split = re.compile(f"({any_word})")
        self._shielded = re.compile("|".join(re.escape(w[0] + MARK + w[1:]) for w in words) or r"(?!)")
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_chars = 0

    def encode(self, text: str) -> bytes:
        """Ids of template text: its control tokens are control tokens, shielded words are letters."""
        if len(text) < SHORT:
            return self.encode_new(text)
        if (ids := self._kept.get(text)) is not None:
            self._kept.move_to_end(text)
            return ids
        ids = self._kept[text] = self.encode_new(text)
        self._kept_chars += len(text)
        while self._kept_chars > KEPT_CHARS:
            self._kept_chars -= len(self._kept.popitem(last=False)[0])
        return ids

    def encode_new(self, text: str) -> bytes:
        """Ids that do not come from memory."""
        if MARK not in text or not self._shielded.search(text):
            return array("i", self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids).tobytes()
        ids = array("i")
        for piece in self._split.split(text):
            if piece in self._special_ids:
                ids.append(self._special_ids[piece])
            elif piece:
                ids.extend(self._as_letters(self._shielded.sub(lambda m: m[0].replace(MARK, ""), piece)))
        return ids.tobytes()

    def encode_raw(self, text: str) -> bytes:
        """Ids of a raw prompt (completions): control tokens are read, bos is added where the tokenizer adds it."""
        return array("i", self._tokenizer.encode(text).ids).tobytes()

    def _as_letters(self, text: str) -> list[int]:
        self._tokenizer.encode_special_tokens = True
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False

    def decode(self, ids: Any) -> str:
        """Text of ids, control tokens included; broken UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def shield(self, value: Any) -> Any:
        """`value` (a string, or JSON made of them) with every control word in it marked as letters."""
        if isinstance(value, str):
            return self._words.sub(lambda m: m[0][0] + MARK + m[0][1:], value) if self._words.search(value) else value
        if isinstance(value, dict):
            return {self.shield(key): self.shield(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.shield(item) for item in value]
        return value

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)
