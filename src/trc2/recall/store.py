"""Documents that a saved model was taught: their tokens, packed, in one file beside its weights.

The file appears whole or not at all, and it is checked when it is read. Everything else, such as counts, is computed
from it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from trc2.errors import UserError
from trc2.recall import FILE, FOLDER
from trc2.recall.counts import Counts, Ints
from trc2.recall.gate import Gate
from trc2.system.files import reading, refuse_link, sync_folder, write_atomically

SCHEMA = 1
HASH_DIGITS = 8

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class StoredDocument:
    """One document: its number, which is never used again, the sha256 of its tokens, and where it came from."""

    number: int
    sha256: str
    source: str
    tokens: Ints

    @property
    def name(self) -> str:
        """As commands show it: the number, and the beginning of the hash."""
        return f"{self.number}-{self.sha256[:HASH_DIGITS]}"

    def describe(self) -> dict[str, Any]:
        return {"id": self.name, "source": self.source, "tokens": len(self.tokens)}


@dataclass(frozen=True)
class Store:
    """The documents of one model in the order in which they were taught.

    `keep` is text on which the gate was fitted to stay closed, and `keep_source` says where it came from. `max_bytes`
    limits the packed tokens of all documents, and `cut` is the smallest hash that it had no room for.
    """

    vocabulary: int
    tokenizer: str
    documents: tuple[StoredDocument, ...] = ()
    next_number: int = 1
    gate: Gate | None = None
    keep: tuple[Ints, ...] = ()
    keep_source: str = ""
    max_bytes: int | None = None
    cut: str | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(document.tokens) for document in self.documents)

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed tokens."""
        return packed_bytes(self.num_tokens, self.vocabulary)

    def add(self, texts: Iterable[tuple[str, Sequence[int]]]) -> Store:
        """With these sources and tokens. A document that is stored already is not stored a second time."""
        known = {document.sha256 for document in self.documents}
        added, number = list(self.documents), self.next_number
        for source, ids in texts:
            tokens = np.asarray(ids, dtype=np.int64)
            sha256 = _hash_of(tokens)
            if sha256 not in known:
                known.add(sha256)
                added.append(StoredDocument(number, sha256, source, tokens))
                number += 1
        return replace(self, documents=tuple(added), next_number=number)

    def within_limit(self) -> Store:
        """Without documents that are too much for `max_bytes`.

        Those with the smallest hashes stay. This is a random sample of all documents that were ever taught, and it does
        not depend on their order.
        """
        if self.max_bytes is None:
            return self
        fitting = [d for d in self.documents if packed_bytes(len(d.tokens), self.vocabulary) <= self.max_bytes]
        chosen, total, cut = set(), 0, self.cut
        for document in sorted(fitting, key=lambda document: document.sha256):
            total += len(document.tokens)
            if (cut is not None and document.sha256 >= cut) or packed_bytes(total, self.vocabulary) > self.max_bytes:
                cut = document.sha256 if cut is None else min(cut, document.sha256)
                break
            chosen.add(document.number)
        return replace(self, documents=tuple(d for d in self.documents if d.number in chosen), cut=cut)

    def remove(self, numbers: Collection[int]) -> Store:
        """Without the documents of these numbers. There may be room for others again."""
        return replace(self, documents=tuple(d for d in self.documents if d.number not in numbers), cut=None)

    def counts(self, documents: Sequence[StoredDocument] | None = None) -> Counts:
        """Counts of all documents, or of these."""
        chosen = self.documents if documents is None else documents
        return Counts.of([document.tokens for document in chosen], self.vocabulary)

    def identity(self) -> str:
        """A hash of all that predictions depend on: the documents, whatever their order, and the gate."""
        weights = () if self.gate is None else self.gate.weights
        content = [*sorted(document.sha256 for document in self.documents), *map(repr, weights)]
        return hashlib.sha256("\n".join(content).encode()).hexdigest()

    def holders(self, gram: Sequence[int]) -> dict[int, int]:
        """How often each document holds these tokens in a row, by the number of the document."""
        tokens, owners = self._laid_out
        last = len(tokens) - len(gram) + 1
        if last < 1 or not gram:
            return {}
        starts = np.flatnonzero(tokens[:last] == gram[0])
        for offset, token in enumerate(gram[1:], start=1):
            starts = starts[tokens[starts + offset] == token]
        inside = owners[starts] == owners[starts + len(gram) - 1]
        places, number = np.unique(owners[starts[inside]], return_counts=True)
        return {self.documents[place].number: int(count) for place, count in zip(places, number, strict=True)}

    @cached_property
    def _laid_out(self) -> tuple[Ints, Ints]:
        """All tokens, and for each one the place of its document."""
        tokens = np.concatenate([np.empty(0, np.int64), *(document.tokens for document in self.documents)])
        return tokens, np.repeat(np.arange(len(self.documents)), [len(d.tokens) for d in self.documents])


def store_path(folder: Path) -> Path:
    """The store of a saved model."""
    return folder / FOLDER / FILE


def write_store(folder: Path, store: Store) -> None:
    """Replace the store of a saved model in one step. A store without documents is removed."""
    path = store_path(folder)
    for part in (path.parent, path):
        refuse_link(part)
    if not store.documents:
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)  # what was forgotten must not come back after a power cut
        return
    path.parent.mkdir(exist_ok=True)
    tensors = {
        "tokens": pack([document.tokens for document in store.documents], store.vocabulary),
        "keep": pack(store.keep, store.vocabulary),
    }
    content = {
        "schema": SCHEMA,
        "vocabulary": store.vocabulary,
        "tokenizer": store.tokenizer,
        "next_number": store.next_number,
        "gate": None if store.gate is None else store.gate.to_json(),
        "keep": [len(tokens) for tokens in store.keep],
        "keep_source": store.keep_source,
        "max_bytes": store.max_bytes,
        "cut": store.cut,
        "documents": [[d.number, d.sha256, d.source, len(d.tokens)] for d in store.documents],
    }
    content["sha256"] = _checksum(content, tensors)
    # One entry: safetensors writes several in a random order, and equal stores must be equal files.
    write_atomically(path, safetensors.numpy.save(tensors, metadata={"store": json.dumps(content)}))
    sync_folder(path.parent)


def read_store(folder: Path, vocabulary: int | None, tokenizer: str) -> Store | None:
    """The store of a saved model, or None if it has none. Raises a UserError if it is damaged or of another tokenizer.

    Without a vocabulary size, that of the file is taken.
    """
    path = store_path(folder)
    if not path.exists():
        return None
    remedy = "restore it from a copy, or remove it and teach the documents again"
    with reading(path, remedy):
        with safetensors.safe_open(path, framework="numpy") as file:
            content = json.loads((file.metadata() or {})["store"])
            tensors = {name: file.get_tensor(name) for name in ("tokens", "keep")}
        if content.pop("sha256") != _checksum(content, tensors):
            raise UserError(f"{path} is damaged, its checksum differs: {remedy}.")
        if content["schema"] != SCHEMA:
            raise UserError(f"{path} has schema {content['schema']}, this version reads {SCHEMA}: teach it again.")
        vocabulary = int(content["vocabulary"]) if vocabulary is None else vocabulary
        if (content["vocabulary"], content["tokenizer"]) != (vocabulary, tokenizer):
            raise UserError(
                f"{path} was written with another tokenizer than that of the model: restore tokenizer.json, or remove "
                "the store and teach the documents again."
            )
        rows = content["documents"]
        tokens = unpack(tensors["tokens"], [length for *_, length in rows], vocabulary)
        documents = tuple(
            StoredDocument(number, sha256, source, ids)
            for (number, sha256, source, _), ids in zip(rows, tokens, strict=True)
        )
        if any(_hash_of(document.tokens) != document.sha256 for document in documents):
            raise UserError(f"{path} is damaged, a document is not what was taught: {remedy}.")
        gate = None if content["gate"] is None else Gate.from_json(content["gate"])
        keep = tuple(unpack(tensors["keep"], content["keep"], vocabulary))
        return Store(
            vocabulary, tokenizer, documents, content["next_number"], gate, keep, content["keep_source"],
            content.get("max_bytes"), content.get("cut"),
        )  # fmt: skip


def _checksum(content: dict[str, Any], tensors: dict[str, Bytes]) -> str:
    digest = hashlib.sha256(json.dumps(content).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _hash_of(tokens: Ints) -> str:
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()


# ------------------------------------------------------------------------------------------------------------ packing


def bits_per_token(vocabulary: int) -> int:
    """12, 16 or 32: the first that can hold every token of the vocabulary."""
    return 12 if vocabulary <= 2**12 else 16 if vocabulary <= 2**16 else 32


def packed_bytes(num_tokens: int, vocabulary: int) -> int:
    return -(-num_tokens * bits_per_token(vocabulary) // 8)


def pack(documents: Sequence[Ints], vocabulary: int) -> Bytes:
    """All tokens one after the other. Of two tokens of 12 bits, the middle byte holds a half of each."""
    tokens = np.concatenate([np.empty(0, np.int64), *documents])
    bits = bits_per_token(vocabulary)
    if bits > 12:
        return np.frombuffer(tokens.astype("<u2" if bits == 16 else "<u4").tobytes(), dtype=np.uint8)
    size = packed_bytes(len(tokens), vocabulary)
    first, second = np.append(tokens, 0)[: len(tokens) + len(tokens) % 2].reshape(-1, 2).T
    triples = np.stack((first & 255, first >> 8 | (second & 15) << 4, second >> 4), axis=1)
    return triples.astype(np.uint8).reshape(-1)[:size]


def unpack(content: Bytes, lengths: Sequence[int], vocabulary: int) -> list[Ints]:
    """The tokens of documents with these lengths. Raises a ValueError if they do not fit."""
    bits, total = bits_per_token(vocabulary), sum(lengths)
    if any(length < 0 for length in lengths) or len(content) != packed_bytes(total, vocabulary):
        raise ValueError(f"{len(content)} bytes do not hold {total} tokens")
    if bits == 12:
        low, middle, high = np.append(content, np.zeros(-len(content) % 3, np.uint8)).reshape(-1, 3).astype(np.int64).T
        tokens = np.stack((low | (middle & 15) << 8, middle >> 4 | high << 4), axis=1).reshape(-1)[:total]
    else:
        tokens = np.frombuffer(content.tobytes(), dtype="<u2" if bits == 16 else "<u4").astype(np.int64)
    if total and tokens.max() >= vocabulary:
        raise ValueError(f"token {tokens.max()} is not in the vocabulary")
    ends = np.cumsum([0, *lengths])
    return [tokens[start:stop] for start, stop in pairwise(ends)]
