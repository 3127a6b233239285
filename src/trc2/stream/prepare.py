"""From documents to memory-mapped tokens: packed once, described by a manifest, reused while nothing changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError
from trc2.stream.cache import CACHE_SCHEMA, digest, expanded, is_whole, partial_of, remembered, sole_maker
from trc2.stream.document import DUPLICATE, BadRows, Document
from trc2.stream.overlap import overlap_matrix
from trc2.stream.sources import SPLITS, BuiltinSource, FileSource, Source, SourceGone, source_of
from trc2.stream.tokenizer import Tokenizer, limited, load_tokenizer, train_bpe
from trc2.system.failpoints import failpoint
from trc2.system.files import about, refuse_special, replace_folder, sync_folder, write_durably

SCHEMA = 1  # of what `PreparedStream.describe` returns, which run folders keep
WAITING = "waiting for another process"  # told in place of a split
TOKENIZER = "tokenizer"  # the same, with documents and bytes read
LEARNING = "learning"  # the same, with entries wanted and bytes read
BATCH_BYTES = 2**20  # text handed to the tokenizer at once; this, not the corpus, decides peak memory

Watch = Callable[[str, str, int, int], None]
"""Hears (task, split, documents so far, tokens so far)."""


@dataclass(frozen=True)
class SplitInfo:
    """What one packed split holds."""

    documents: int
    tokens: int
    bytes: int
    sha256: str
    bad_rows: dict[str, Any]
    documents_sha256: str = ""


@dataclass(frozen=True)
class PreparedTask:
    """A task's packed splits on disk."""

    name: str
    folder: Path
    dtype: str
    splits: dict[str, SplitInfo]
    source: dict[str, Any]
    messages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def tokens(self, split: str) -> np.memmap[Any, Any] | np.ndarray[Any, Any]:
        """All tokens of a split, end of text between documents, read from disk as needed."""
        if split not in self.splits or self.splits[split].tokens == 0:
            return np.empty(0, dtype=self.dtype)
        return self._mapped(f"{split}.tokens", np.dtype(self.dtype), self.splits[split].tokens)

    def read_tokens(self, split: str, start: int, count: int) -> NDArray[Any]:
        """A run of tokens read by itself: passing over a whole split this way keeps none of it in memory."""
        width = np.dtype(self.dtype).itemsize
        return np.fromfile(self.folder / f"{split}.tokens", dtype=self.dtype, count=count, offset=start * width)

    def document_starts(self, split: str) -> np.memmap[Any, Any] | np.ndarray[Any, Any]:
        """Where each document begins."""
        if split not in self.splits or self.splits[split].documents == 0:
            return np.empty(0, dtype=np.int64)
        return self._mapped(f"{split}.documents", np.dtype(np.int64), self.splits[split].documents)

    def _mapped(self, name: str, dtype: np.dtype[Any], count: int) -> np.memmap[Any, Any]:
        path = self.folder / name
        if path.stat().st_size != count * dtype.itemsize:
            raise self._changed()
        return np.memmap(path, dtype=dtype, mode="r")

    def check_unchanged(self) -> None:
        """Refuse packed tokens that were changed after they were opened; files are read only if they were touched."""
        if not is_whole(self.folder, _checksums(self.splits)):
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError(
            f"The packed tokens of task '{self.name}' in {self.folder} were changed while they were read: remove that "
            "folder, and resume from the last checkpoint or train again."
        )

    def bytes_per_token(self, split: str) -> float:
        info = self.splits[split]
        return info.bytes / max(1, info.tokens)


@dataclass(frozen=True)
class PreparedStream:
    """All tasks of a stream, their tokenizer, and how much evaluation text also occurs in train text."""

    tasks: dict[str, PreparedTask]
    tokenizer: Tokenizer
    overlap: dict[str, dict[str, float]]
    seeds: tuple[PreparedTask, ...] = ()  # what the replay stores are filled with before the first step

    def fingerprint(self) -> str:
        """Changes if and only if some token of some task does."""
        content = {
            "tokenizer": self.tokenizer.fingerprint(),
            "tasks": {name: {s: i.sha256 for s, i in task.splits.items()} for name, task in sorted(self.tasks.items())},
        }
        if self.seeds:
            content["seeds"] = [seed.splits["train"].sha256 for seed in self.seeds]
        return digest(content)

    def describe(self) -> dict[str, Any]:
        """For the run folder: enough to tell what was learnt from, without the text."""
        tasks = {
            name: {"splits": {s: asdict(i) for s, i in task.splits.items()}, "source": task.source}
            for name, task in self.tasks.items()
        }
        content = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint(),
            "vocab_size": self.tokenizer.vocab_size,
            "tasks": tasks,
            "overlap": self.overlap,
        }
        if self.seeds:
            content["seeds"] = [{**asdict(seed.splits["train"]), "source": seed.source} for seed in self.seeds]
        return content


def prepare_stream(
    stream: StreamConfig,
    watch: Watch = lambda *_: None,
    tokenizer: Tokenizer | None = None,
    known: Mapping[str, Any] | None = None,
) -> PreparedStream:
    """Make, or find again, the packed tokens of every task.

    A run that goes on brings its own tokenizer, and the tasks of its data.json as `known`: their tokens are taken from
    the cache where the source is gone.
    """
    cache = expanded(stream.cache)
    sources = {task.name: source_of(task, stream) for task in stream.tasks}
    tokenizer = tokenizer or _tokenizer(stream, sources, cache, watch)
    tokenizer = tokenizer.reading_special(stream.tokenizer.special_in_text).beginning(stream.tokenizer.begin_of_text)
    tasks = {}
    for task in stream.tasks:
        source, packed = sources[task.name], (known or {}).get(task.name)
        try:
            if isinstance(source, BuiltinSource) and packed is not None:
                raise SourceGone(f"Task '{task.name}' may be another text in this version of Python.")
            tasks[task.name] = prepare_task(task, source, tokenizer, cache, watch)
        except SourceGone:
            found = None if packed is None else _find_packed(task.name, packed, cache)
            if isinstance(source, BuiltinSource):
                tasks[task.name] = found or prepare_task(task, source, tokenizer, cache, watch)
            elif found is None:
                raise
            else:
                note = f"{task.name}: its files are gone; its packed tokens are in the cache, as the run began with."
                tasks[task.name] = replace(found, notes=(note,))
    files = {
        f"replayed {number} ({Path(name).name})": _prepare_seed(name, stream, tokenizer, cache)
        for number, name in enumerate(stream.replay_prefill_files, 1)
    }
    overlap = overlap_matrix(tasks, files, cache / "overlap", lambda: watch("overlap", WAITING, 0, 0))
    seeds = (*files.values(), *(tasks[name] for name in stream.replay_prefill_tasks))
    return PreparedStream(tasks, tokenizer, overlap, seeds)


def _prepare_seed(name: str, stream: StreamConfig, tokenizer: Tokenizer, cache: Path) -> PreparedTask:
    """A file, or the train text of a folder, as it is named or below the data root."""
    path, below = expanded(name), expanded(stream.data_root or Path()) / name
    path = below if not path.exists() and below.exists() else path
    if not path.is_dir():
        return prepare_file(path, "text", tokenizer, cache)
    task = TaskConfig(name="folder", folder=".", holdout=0.0)
    return prepare_task(task, FileSource(task, path, cache), tokenizer, cache)


def prepare_file(path: Path, text_format: str, tokenizer: Tokenizer, cache: Path) -> PreparedTask:
    """One file, whole, as the train split of a task of its own."""
    if not path.is_file():
        raise UserError(f"There is no file {path}: check the path.")
    splits = {"train": path.name, "validation": None, "test": None}
    task = TaskConfig(name="file", folder=".", format=text_format, splits=splits, holdout=0.0)
    return prepare_task(task, FileSource(task, path.parent, cache), tokenizer, cache)


def prepare_task(
    task: TaskConfig, source: Source, tokenizer: Tokenizer, cache: Path, watch: Watch = lambda *_: None
) -> PreparedTask:
    """Pack one task unless the cache holds it already, whole."""
    key = digest(
        {
            "schema": CACHE_SCHEMA,
            "source": source.identity(),
            "settings": task.reading(),
            "tokenizer": tokenizer.fingerprint(),
            "special_in_text": tokenizer.special_in_text,
        }
    )
    folder = cache / "tasks" / f"{task.name}-{key[:16]}"
    remarks, notes = source.remarks(), tuple(source.notes())
    prepared = _open_task(folder, key)
    if prepared is None:
        with sole_maker(folder, lambda: watch(task.name, WAITING, 0, 0)):
            prepared = _open_task(folder, key)
            if prepared is None:
                if folder.exists():
                    remarks.append(f"The packed tokens of {task.name} in the cache were damaged and are packed again.")
                _pack_task(task, source, tokenizer, key, folder, watch)
                prepared = _open_task(folder, key)
    if prepared is None:
        raise UserError(f"{folder} does not hold what was written to it: check the disk.")
    return replace(prepared, messages=(*prepared.messages, *remarks), notes=notes)


def _find_packed(name: str, packed: Any, cache: Path) -> PreparedTask | None:
    """Of the packed tasks of this name the one with the tokens a run's data.json describes, if it is whole."""
    for path in sorted((cache / "tasks").glob(f"{name}-*/manifest.json")):
        with suppress(
            OSError, ValueError, LookupError, TypeError, AttributeError
        ):  # theirs or ours: not what is sought
            refuse_special(path)
            manifest = json.loads(path.read_text(encoding="utf-8"))
            hashes = [{split: info["sha256"] for split, info in of["splits"].items()} for of in (manifest, packed)]
            found = _open_task(path.parent, manifest["key"]) if hashes[0] == hashes[1] else None
            if found is not None:
                return found
    return None


def _pack_task(task: TaskConfig, source: Source, tokenizer: Tokenizer, key: str, folder: Path, watch: Watch) -> None:
    """Pack all splits into a folder, which appears whole or not at all."""
    partial = partial_of(folder)
    partial.mkdir()
    try:
        manifest = _pack_splits(task, source, tokenizer, partial, watch)
        manifest = {"schema": CACHE_SCHEMA, "key": key, **manifest}
        content = {**manifest, "checksum": digest(manifest)}
        write_durably(partial / "manifest.json", json.dumps(content, indent=2).encode())
        sync_folder(partial)
        failpoint("pack rename")
        replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _pack_splits(task: TaskConfig, source: Source, tokenizer: Tokenizer, folder: Path, watch: Watch) -> dict[str, Any]:
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    splits, messages = {}, []
    for split in SPLITS:
        limit = task.max_train_bytes if split == "train" else task.max_eval_bytes
        bad = BadRows()
        documents = _limited_documents(source.documents(split, bad), limit)
        splits[split] = _pack_split(documents, bad, folder / split, tokenizer, dtype, task.name, split, watch)
        failpoint("pack")
        if bad.total():
            messages.append(f"{task.name}/{split}: {bad.sentence()}")
    if splits["train"].tokens == 0 and (task.holdout < 1.0 or splits["validation"].tokens == 0):
        raise UserError(f"Task '{task.name}' has no train text: {' '.join(messages) or 'its source is empty.'}")
    return {
        "name": task.name,
        "dtype": dtype,
        "splits": {split: asdict(info) for split, info in splits.items()},
        "source": {**source.identity(), "format": task.format, "license": task.license},
        "messages": messages,
    }


def _pack_split(
    documents: Iterator[Document],
    bad: BadRows,
    stem: Path,
    tokenizer: Tokenizer,
    dtype: str,
    task: str,
    split: str,
    watch: Watch,
) -> SplitInfo:
    """Append ids document by document; exact duplicates are packed once."""
    count = tokens = size = 0
    checksum, starts_checksum = hashlib.sha256(), hashlib.sha256()
    seen: set[bytes] = set()
    tokens_path, starts_path = stem.with_suffix(".tokens"), stem.with_suffix(".documents")
    with about(tokens_path), tokens_path.open("wb") as ids, starts_path.open("wb") as starts:
        for texts in _batches(documents, seen, bad):
            size += sum(len(text.encode()) for text in texts)
            for encoded in tokenizer.encode_batch(texts):
                ids_of = [*tokenizer.begin_of_text, *encoded, tokenizer.end_of_text]
                content = np.asarray(ids_of, dtype=dtype).tobytes()
                ids.write(content)
                checksum.update(content)
                start = np.int64(tokens).tobytes()
                starts.write(start)
                starts_checksum.update(start)
                tokens += len(ids_of)
                count += 1
            watch(task, split, count, tokens)
        for file in (ids, starts):
            file.flush()
            os.fsync(file.fileno())
    return SplitInfo(count, tokens, size, checksum.hexdigest(), bad.to_json(), starts_checksum.hexdigest())


def _batches(documents: Iterator[Document], seen: set[bytes], bad: BadRows) -> Iterator[list[str]]:
    """Groups of texts of about BATCH_BYTES; of equal documents only the first."""
    texts: list[str] = []
    size = 0
    for document in documents:
        mark = hashlib.blake2b(document.text.encode(), digest_size=8).digest()
        if mark in seen:
            bad.add(DUPLICATE, document.where)
            continue
        if len(seen) < 2_000_000:  # a bound on memory; beyond it later duplicates stay
            seen.add(mark)
        texts.append(document.text)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _limited_documents(documents: Iterator[Document], max_bytes: int | None) -> Iterator[Document]:
    used = 0
    for document in documents:
        if max_bytes is not None and used >= max_bytes:
            return
        used += len(document.text.encode())
        yield document


def _checksums(splits: Mapping[str, SplitInfo]) -> dict[str, str]:
    """By the names of the files of a packed task."""
    tokens = {f"{split}.tokens": info.sha256 for split, info in splits.items()}
    return tokens | {f"{split}.documents": info.documents_sha256 for split, info in splits.items()}


def _open_task(folder: Path, key: str) -> PreparedTask | None:
    """What a folder of the cache holds, or None if it is not there, or not as it was written."""
    path = folder / "manifest.json"
    if not path.is_file():  # a pipe of this name would be waited for
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        checksum = manifest.pop("checksum")
        if manifest["key"] != key or checksum != digest(manifest):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    splits = {split: SplitInfo(**info) for split, info in manifest["splits"].items()}
    if not is_whole(folder, _checksums(splits)):
        return None
    return PreparedTask(
        manifest["name"], folder, manifest["dtype"], splits, manifest["source"], tuple(manifest["messages"])
    )


def _tokenizer(stream: StreamConfig, sources: dict[str, Source], cache: Path, watch: Watch) -> Tokenizer:
    """Load the tokenizer, or train it on the tasks in sorted order so that every task order shares it."""
    config = stream.tokenizer
    if config.path is not None:
        return load_tokenizer(config, stream.data_root)
    tasks = sorted(stream.tasks, key=lambda task: task.name)
    key = digest(
        {
            "schema": CACHE_SCHEMA,
            "config": config.model_dump(exclude={"special_in_text", "begin_of_text"}),
            "tasks": [[task.reading(), sources[task.name].identity()] for task in tasks],
        }
    )

    def texts() -> Iterator[str]:
        count = size = 0
        for task in tasks:
            watch(task.name, TOKENIZER, count, size)
            documents = sources[task.name].documents("train", BadRows())
            for text in limited((document.text for document in documents), config.max_train_bytes):
                yield text
                count, size = count + 1, size + len(text.encode())
                if count % 100 == 0:
                    watch(task.name, TOKENIZER, count, size)
        watch("tokenizer", LEARNING, config.vocab_size, size)

    return remembered(
        cache / "tokenizers" / f"{key[:16]}.json",
        make=lambda: train_bpe(texts(), config.vocab_size).to_json(),
        read=Tokenizer.from_json,
        waiting=lambda: watch("tokenizer", WAITING, 0, 0),
    )
