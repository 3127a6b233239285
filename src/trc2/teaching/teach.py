"""Teach a saved model documents, and make it forget them: only its store changes, never its weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trc2.errors import UserError, brief
from trc2.recall import FOLDER
from trc2.recall.gate import Gate
from trc2.recall.store import Store, StoredDocument, packed_bytes, read_store, write_store
from trc2.runs.folder import VERSION_FILE, VERSIONS_TABLE, RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.target import Target, find_target
from trc2.stream.document import Document
from trc2.stream.tokenizer import Tokenizer
from trc2.system.files import refuse_link
from trc2.system.precision import choose_device
from trc2.teaching.fit import BY_FILES, KEEP_TOKENS, fit_store, windows

BATCH = 1000  # documents that are tokenized at once


@dataclass(frozen=True)
class Change:
    """The result of teaching or forgetting: the documents that came or went, and the store as it is now.

    `left_out` counts documents, earlier ones too, that `max_bytes` has no room for. `gain` and `keep_rise` are those of
    the gate, see `Fitted`. None if it was not fitted.
    """

    documents: tuple[StoredDocument, ...]
    store: Store
    known: int
    gain: float | None
    keep_rise: float | None
    seconds: float
    left_out: int = 0

    @property
    def gate(self) -> Gate | None:
        return self.store.gate

    def describe(self) -> dict[str, Any]:
        """For programs."""
        return {
            "documents": [document.describe() for document in self.documents],
            "known_already": self.known,
            "left_out": self.left_out,
            "stored": {
                "documents": len(self.store.documents),
                "tokens": self.store.num_tokens,
                "bytes": self.store.num_bytes,
            },
            "gate": None if self.gate is None else self.gate.to_json(),
            "gain_nats": self.gain,
            "keep_rise_nats": self.keep_rise,
            "seconds": self.seconds,
        }


def teach(
    folder: str, documents: Iterable[Document], warn: Warn, *, keep: Iterable[Document] = (),
    max_bytes: int | None = None,
) -> Change:  # fmt: skip
    """Store documents beside a saved model and fit the gate that reads them. The next prediction uses them.

    `keep` is text whose loss must not rise. Without it, and without such text in the store, the model samples some.
    Documents that are stored already are left out. `max_bytes` limits the stored tokens from now on: beyond it, a
    random sample of all documents stays.
    """
    if max_bytes is not None and max_bytes < 1:
        raise UserError(f"max_bytes={max_bytes} leaves no room for documents: use 1 or more, or forget documents.")
    target, begun = _saved_model(folder), time.perf_counter()
    path = target.weights_folder
    with lock_folder(path / FOLDER):
        net, tokenizer = target.trained_model(warn, with_recall=False)
        vocabulary, fingerprint = net.config.vocab_size, tokenizer.fingerprint()
        before = read_store(path, vocabulary, fingerprint) or Store(vocabulary, tokenizer.fingerprint())
        texts = list(_tokenized(documents, tokenizer))
        if not texts:
            raise UserError("There is nothing to teach: the files hold no documents.")
        limited = before if max_bytes in (None, before.max_bytes) else replace(before, max_bytes=max_bytes, cut=None)
        whole = limited.add(texts)
        after, known = whole.within_limit(), len(texts) + len(before.documents) - len(whole.documents)
        if not after.documents:
            least = min(packed_bytes(len(document.tokens), vocabulary) for document in whole.documents)
            raise UserError(f"max_bytes={after.max_bytes} has no room for any document: use {least} or more.")
        kept = windows([list(ids) for _, ids in _tokenized(keep, tokenizer)], KEEP_TOKENS)
        if kept:
            after = replace(after, keep=kept, keep_source=BY_FILES)
        new = tuple(document for document in after.documents if document.number >= before.next_number)
        same = [d.number for d in after.documents] == [d.number for d in before.documents]
        if same and not kept and after.max_bytes == before.max_bytes:
            return Change((), before, known, None, None, time.perf_counter() - begun, len(texts) - known)
        net.to(choose_device("auto"))
        fitted = fit_store(net, tokenizer, after)
        write_store(path, fitted.store)
    seconds = time.perf_counter() - begun
    left_out = len(whole.documents) - len(after.documents)
    return Change(new, fitted.store, known, fitted.gain, fitted.keep_rise, seconds, left_out)


def forget(folder: str, warn: Warn, *, documents: Sequence[str] = (), sources: Sequence[str] = ()) -> Change:
    """Remove documents by their ids or by patterns of their sources, and fit the gate to those that are left.

    The store is then as if they had never been taught, except that their numbers stay used. Without documents left,
    predictions are those of the weights alone, to the bit.
    """
    if not documents and not sources:
        raise UserError("Nothing was named to forget: give the id of a document, or a pattern of sources.")
    target, begun = _saved_model(folder), time.perf_counter()
    path = target.weights_folder
    with lock_folder(path / FOLDER):
        net, tokenizer = target.trained_model(warn, with_recall=False)
        store = read_store(path, net.config.vocab_size, tokenizer.fingerprint())
        if store is None:
            raise UserError(f"{folder} was taught nothing, so there is nothing to forget.")
        chosen = _by_id(store, documents, folder) | _by_source(store, sources, folder)
        gone = tuple(document for document in store.documents if document.number in chosen)
        left = store.remove(chosen)
        gain = keep_rise = None
        if left.documents:
            fitted = fit_store(net.to(choose_device("auto")), tokenizer, left)
            left, gain, keep_rise = fitted.store, fitted.gain, fitted.keep_rise
        write_store(path, left)
    return Change(gone, left, 0, gain, keep_rise, time.perf_counter() - begun)


def stored_documents(folder: str) -> Store | None:
    """What a saved model was taught. None if nothing."""
    target = _saved_model(folder)
    return read_store(target.weights_folder, target.config.model.vocab_size, target.tokenizer().fingerprint())


def _saved_model(name: str) -> Target:
    """A saved model that may be changed. Recipes, runs and versions get a sentence about what to do instead."""
    path = Path(name)
    if (path / VERSIONS_TABLE).is_file() or (path / VERSION_FILE).is_file():
        raise UserError(f"{name} holds versions, which never change: copy the folder model/ of one and name the copy.")
    if RunFolder(path).is_run:
        raise UserError(
            f"{name} is a run folder, and documents are taught to a saved model: run `trc2 export {name} FOLDER`, "
            "then name FOLDER."
        )
    target = find_target(name)
    if (target.weights_folder.resolve().parent / VERSION_FILE).is_file():
        raise UserError(f"{name} is part of a version, which never changes: copy the folder and name the copy.")
    refuse_link(path / FOLDER)
    return target


def _tokenized(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterable[tuple[str, Sequence[int]]]:
    """Sources and tokens, with the marks of beginning and end that a stream of text has."""
    batch: list[Document] = []

    def encoded() -> Iterable[tuple[str, Sequence[int]]]:
        for document, ids in zip(batch, tokenizer.encode_batch([d.text for d in batch]), strict=True):
            yield document.where, [*tokenizer.begin_of_text, *ids, tokenizer.end_of_text]

    for document in documents:
        batch.append(document)
        if len(batch) == BATCH:
            yield from encoded()
            batch.clear()
    yield from encoded()


def _by_id(store: Store, wanted: Sequence[str], folder: str) -> set[int]:
    """Numbers of documents by their ids, `12-3fa9c1d2`, or by the number alone."""
    names = {document.name: document.number for document in store.documents}
    names |= {str(document.number): document.number for document in store.documents}
    for name in wanted:
        if name not in names:
            raise UserError(f"{folder} has no document '{brief(name, 60)}': `trc2 recall {folder}` lists their ids.")
    return {names[name] for name in wanted}


def _by_source(store: Store, patterns: Sequence[str], folder: str) -> set[int]:
    """Numbers of documents whose source, with or without its line, matches one of the patterns."""
    chosen: set[int] = set()
    for pattern in patterns:
        matching = {
            document.number
            for document in store.documents
            if any(fnmatchcase(name, pattern) for name in (document.source, document.source.rpartition(":")[0]))
        }
        if not matching:
            raise UserError(
                f"No source of {folder} matches '{brief(pattern, 60)}': `trc2 recall {folder}` lists the sources."
            )
        chosen |= matching
    return chosen
