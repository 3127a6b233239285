"""Tokenizers: a saved one, or a byte-level BPE trained on the stream."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trc2.config import TokenizerConfig
from trc2.errors import UserError, brief
from trc2.stream.cache import expanded
from trc2.stream.chat import SETTINGS_FILE, TEMPLATE_FILE, ChatTemplate, read_template
from trc2.system.files import reading

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
PRETRAINED = "pretrained"  # the folder of a run with the files of the Hugging Face model it began with
MAX_BYTES = 2**28  # of a tokenizer.json
PIECE = 64  # characters
# Characters that the pre-tokenizer may join to one word: letters and digits, other signs, or spaces.
KINDS = (r"[^\W_]", r"(?:[^\w\s]|[_\x1c-\x1f])", r"\s")
# Matching only at the start of a run keeps the search linear. SUSPECT is a faster test that nearly all texts pass.
OVERLONG = re.compile("|".join(f"(?<!{kind}){kind}{{1000,}}" for kind in KINDS))
SUSPECT = re.compile(r"(?<![^ \n])[^ \n]{1000,}|(?<!\s)\s{1000,}")


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Errors of the tokenizers library as a UserError. Its panics are not subclasses of `Exception`."""
    try:
        yield
    except (UserError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"The tokenizer cannot {what} ({brief(error)}): choose another one.") from error


class Tokenizer:
    """Text to ids and back, with one token that ends a document.

    Truncation and padding of a saved tokenizer are switched off. Special tokens inside a text are ordinary text,
    unless `special_in_text`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_in_text: bool = False,
        end: str | None = None,
        begins: bool = False,
        home: Path | str | None = None,
    ) -> None:
        """`end` names the token that ends a document, if it is not one of the usual ones.

        `begins` puts the tokenizer's own first token, if it has one, before every document. `home` is the folder that
        holds its chat template, or its name on the hub.
        """
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = not special_in_text
        self.backend = backend
        self.end_of_text = _end_of_text(backend, end)
        self.end = None if end is None or self.end_of_text == _usual_end(backend) else end
        self.begins, self.home = begins, home
        self.begin_of_text = _begin_of_text(backend, self.end_of_text) if begins else []
        if self.begin_of_text and self.begin_of_text[0] >= self.vocab_size:
            raise UserError(
                f"The tokenizer puts the token {self.begin_of_text[0]} before a text, but it has only "
                f"{self.vocab_size} tokens: correct its post-processor, or choose another one."
            )

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, because a saved tokenizer may skip ids."""
        return max(int(self.backend.get_vocab_size()), 1 + max(self.backend.get_vocab().values()))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, on all cores."""
        with _library("encode this text"):
            return [encoding.ids for encoding in self.backend.encode_batch(texts, add_special_tokens=False)]

    @cached_property
    def chat(self) -> ChatTemplate | None:
        """The tokenizer's own chat template. It is read when it is first needed, so a broken one does no other harm."""
        if isinstance(self.home, str):
            return _template_on_hub(self.home)
        homes = [] if self.home is None else [self.home, self.home / PRETRAINED]
        return next((template for home in homes if (template := read_template(home)) is not None), None)

    @cached_property
    def special(self) -> tuple[str, ...]:
        """The texts of the special tokens, longest first."""
        tokens = self.backend.get_added_tokens_decoder().values()
        return tuple(sorted((token.content for token in tokens if token.special), key=lambda text: (-len(text), text)))

    def encode_with_places(self, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text, and the characters that each of them covers."""
        with _library("encode this text"):
            encodings = self.backend.encode_batch(texts, add_special_tokens=False)
            return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        with _library("decode what the model says"):
            return str(self.backend.decode(ids, skip_special_tokens=False))

    def to_json(self) -> str:
        return str(self.backend.to_str())

    def fingerprint(self) -> str:
        content = self.to_json()
        if self.end is not None or self.begin_of_text:
            content += json.dumps([self.end_of_text, self.begin_of_text])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def special_in_text(self) -> bool:
        return not self.backend.encode_special_tokens

    def with_settings(self, special_in_text: bool, begins: bool) -> Tokenizer:
        """The same tokenizer with other settings, which its JSON does not contain."""
        if (special_in_text, begins) == (self.special_in_text, self.begins):
            return self
        with _library("be read again as it was written"):
            return self.from_json(self.to_json(), special_in_text, end=self.end, begins=begins, home=self.home)

    @classmethod
    def from_json(
        cls,
        text: str,
        special_in_text: bool = False,
        *,
        end: str | None = None,
        begins: bool = False,
        home: Path | str | None = None,
    ) -> Tokenizer:
        try:
            backend = tokenizers.Tokenizer.from_str(text)
            return cls(backend, special_in_text=special_in_text, end=end, begins=begins, home=home)
        except (UserError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also the library's panics
            raise ValueError(brief(error)) from error

    @classmethod
    def read(cls, path: Path) -> Tokenizer:
        """From a tokenizer.json, and the end-of-text token that a file beside it may name."""
        with reading(path, "restore it from a copy, or choose another tokenizer"):
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
            named = _named_end(path.with_name(SETTINGS_FILE))
            return cls.from_json(path.read_text(encoding="utf-8"), end=named, home=path.parent)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE, which can encode every text and decodes it exactly."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((piece for text in texts for piece in without_overlong_words(text)), trainer)
    return Tokenizer(backend)


def without_overlong_words(text: str) -> Iterator[str]:
    """A text for training, in which words of a thousand characters or more are cut into pieces.

    The time to train a BPE grows with the square of a word's length.
    """
    start = 0
    for run in OVERLONG.finditer(text) if SUSPECT.search(text) else ():
        yield text[start : run.start()]
        for begin in range(run.start(), run.end(), PIECE):
            yield text[begin : min(begin + PIECE, run.end())]
        start = run.end()
    yield text[start:]


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a run or a saved model."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise UserError(f"There is no {path}: put the model's tokenizer there.")
    return Tokenizer.read(path)


def load_tokenizer(config: TokenizerConfig, data_root: Path | None) -> Tokenizer:
    """A tokenizer.json from a folder, as named or below the data root, or from the Hugging Face hub."""
    assert config.path is not None
    folders = (expanded(config.path), expanded(data_root or Path()) / config.path)
    for folder in folders:
        if (folder / TOKENIZER_FILE).is_file():
            return Tokenizer.read(folder / TOKENIZER_FILE)
    for folder in folders:
        if folder.is_dir() or Path(config.path).is_absolute():
            raise UserError(f"There is no {folder / TOKENIZER_FILE}: put the tokenizer there, or name another folder.")
    try:
        backend = tokenizers.Tokenizer.from_pretrained(config.path)
    except Exception as error:
        raise UserError(
            f"There is no tokenizer '{config.path}': no folder with a tokenizer.json has this name, and the hub says: "
            f"{brief(error)}."
        ) from None
    return Tokenizer(backend, home=config.path)


def _template_on_hub(name: str) -> ChatTemplate | None:
    """The chat template that came with a tokenizer from the hub. None if it is not in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    for file in (SETTINGS_FILE, TEMPLATE_FILE):
        path = try_to_load_from_cache(name, file)
        if isinstance(path, str) and (template := read_template(Path(path).parent)) is not None:
            return template
    return None


def _named_end(path: Path) -> str | None:
    """The end-of-text token that the settings beside a tokenizer name, if any."""
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token") if path.is_file() else None
    except (OSError, ValueError, AttributeError):
        return None
    content = named.get("content") if isinstance(named, dict) else named
    return content if isinstance(content, str) else None


def _begin_of_text(backend: tokenizers.Tokenizer, end: int) -> list[int]:
    """The token that the tokenizer itself puts before a text, if any."""
    first = backend.encode("", add_special_tokens=True).ids[:1]
    return [] if first == [end] else list(first)


def _usual_end(backend: tokenizers.Tokenizer) -> int | None:
    ids = (backend.token_to_id(token) for token in (END_OF_TEXT, "</s>", "<eos>", "[SEP]"))
    return next((int(identity) for identity in ids if identity is not None), None)


def _end_of_text(backend: tokenizers.Tokenizer, named: str | None) -> int:
    identity = None if named is None else backend.token_to_id(named)
    identity = _usual_end(backend) if identity is None else identity
    if identity is not None:
        return int(identity)
    raise UserError(f"The tokenizer has no end-of-text token such as {END_OF_TEXT}: choose one that has.")
