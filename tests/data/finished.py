"""A run directory as a run leaves it: ended trajectories from a real store, the configuration, a tokenizer of words."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from rlctl.pool.ended import EndedLog
from rlctl.wire.arrays import pack_ids
from rlctl.wire.samples import Ended

WORDS = {word: number for number, word in enumerate(("<eos>", "go", "left", "right", "up", "down"))}


def ids(text: str) -> bytes:
    """int32 ids of words with spaces between them."""
    return pack_ids([WORDS[word] for word in text.split()])


def finished_run(folder: Path, ended: Sequence[Ended]) -> Path:
    log = EndedLog(folder / "trajectories", 1 << 20)
    log.write(list(ended))
    log.close()
    (folder / "resolved.toml").write_text('[model]\ninit = "tiny"\n')
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="go"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    (folder / "model").mkdir()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    return folder
