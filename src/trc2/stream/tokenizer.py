"""Tokenizers: a saved one, or a byte-level BPE trained on the stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trc2.config import TokenizerConfig
from trc2.errors import UserError

END_OF_TEXT = "<|endoftext|>"


class Tokenizer:
    """Text to ids and back, with one token that ends a document."""

    def __init__(self, backend: tokenizers.Tokenizer, end_of_text: int) -> None:
        self.backend = backend
        self.end_of_text = end_of_text

    @property
    def vocab_size(self) -> int:
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text; the library uses all cores."""
        return [encoding.ids for encoding in self.backend.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return str(self.backend.decode(ids, skip_special_tokens=False))

    def to_json(self) -> str:
        return str(self.backend.to_str())

    def fingerprint(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        backend = tokenizers.Tokenizer.from_str(text)
        return cls(backend, _end_of_text(backend))


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE: every text can be encoded, and decoding gives it back exactly."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend, _end_of_text(backend))


def load_tokenizer(config: TokenizerConfig, data_root: Path | None) -> Tokenizer:
    """A tokenizer.json from a folder, here or below the data root, or a Hugging Face name."""
    assert config.path is not None
    for folder in (Path(config.path).expanduser(), (data_root or Path()).expanduser() / config.path):
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
    try:
        backend = tokenizers.Tokenizer.from_pretrained(config.path)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"There is no tokenizer '{config.path}': no folder with a tokenizer.json has this name, and the hub says: "
            f"{reason}"
        ) from None
    return Tokenizer(backend, _end_of_text(backend))


def _end_of_text(backend: tokenizers.Tokenizer) -> int:
    for token in (END_OF_TEXT, "</s>", "<eos>", "[SEP]"):
        identity = backend.token_to_id(token)
        if identity is not None:
            return int(identity)
    raise UserError(f"The tokenizer has no end-of-text token such as {END_OF_TEXT}: choose one that has.")


def limited(texts: Iterable[str], max_bytes: int) -> Iterator[str]:
    """Texts until their total passes a number of bytes."""
    seen = 0
    for text in texts:
        if seen >= max_bytes:
            return
        seen += len(text.encode())
        yield text
