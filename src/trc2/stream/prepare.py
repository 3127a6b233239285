"""From documents to packed tokens: packed once, described by a manifest, and reused until something changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError
from trc2.recall import FILE as STORE_FILE
from trc2.stream.answers import Encoder
from trc2.stream.cache import CACHE_SCHEMA, digest, expanded, partial_of, remembered, sole_maker
from trc2.stream.document import DUPLICATE, BadRows, Document, limited
from trc2.stream.overlap import overlap_matrix
from trc2.stream.packed import COUNTED, PreparedStream, PreparedTask, SplitInfo, open_task, text_hashes
from trc2.stream.sources import SPLITS, BuiltinSource, FileSource, Source, SourceGone, TaughtSource, source_of
from trc2.stream.tokenizer import Tokenizer, load_tokenizer, train_bpe
from trc2.system.failpoints import failpoint
from trc2.system.files import about, refuse_special, replace_folder, sync_folder, write_durably

WAITING = "waiting for another process that prepares it"
BATCH_BYTES = 2**20  # text handed to the tokenizer at once, which decides peak memory
MAX_DOCUMENT_HASHES = 2_000_000  # bounds the memory for finding duplicates. Later duplicates stay

Watch = Callable[[str], None]
"""Called with what is being done, such as "packing prose/train: 100 documents, 20,000 tokens"."""


def prepare_stream(
    stream: StreamConfig,
    watch: Watch = lambda _: None,
    tokenizer: Tokenizer | None = None,
    known: Mapping[str, Any] | None = None,
) -> PreparedStream:
    """Pack every task of a stream, or find its packed tokens in the cache.

    A resumed run passes its own tokenizer, and the tasks of its data.json as `known`. If the source of a known task is
    gone, or gives other text now, its packed tokens are taken from the cache, if it has them.
    """
    cache = expanded(stream.cache)
    sources = {task.name: source_of(task, stream) for task in stream.tasks}
    tokenizer = tokenizer or _tokenizer(stream, sources, cache, watch)
    tokenizer = tokenizer.with_settings(stream.tokenizer.special_in_text, stream.tokenizer.begin_of_text)
    tasks = {}
    for task in stream.tasks:
        source, earlier = sources[task.name], (known or {}).get(task.name)
        if isinstance(source, BuiltinSource):  # its text depends on the version of Python, so earlier tokens come first
            packed = _find_packed(task.name, earlier, cache)
            tasks[task.name] = packed or prepare_task(task, source, tokenizer, cache, watch)
            continue
        tasks[task.name] = _prepare_known(task, source, tokenizer, cache, watch, earlier)
    files = {
        f"replayed {number} ({Path(name).name})": _prepare_seed(name, stream, tokenizer, cache)
        for number, name in enumerate(stream.replay_prefill_files, 1)
    }
    overlap = overlap_matrix(tasks, files, cache / "overlap", lambda: watch(f"overlap: {WAITING}"))
    seeds = (*files.values(), *(tasks[name] for name in stream.replay_prefill_tasks))
    return PreparedStream(tasks, tokenizer, overlap, seeds)


def _prepare_known(
    task: TaskConfig, source: Source, tokenizer: Tokenizer, cache: Path, watch: Watch, earlier: Any
) -> PreparedTask:
    """The task with the tokens that a run's data.json describes, if the cache has them, else as its source is now."""
    now, problem = None, None
    try:
        now = prepare_task(task, source, tokenizer, cache, watch)
        if not earlier or now.has_text_of(earlier):
            return now
        change = "its files give other text now"
    except SourceGone as error:
        change, problem = "its files are gone", error
    packed = _find_packed(task.name, earlier, cache)
    if packed is not None:
        note = f"{task.name}: {change}. The packed tokens that the run began with are in the cache."
        return replace(packed, notes=(note,))
    if now is None:
        assert problem is not None
        raise problem
    return now


def _prepare_seed(name: str, stream: StreamConfig, tokenizer: Tokenizer, cache: Path) -> PreparedTask:
    """A file, or the train text of a folder. Its path is tried as it is and below the data root."""
    path, below = expanded(name), expanded(stream.data_root or Path()) / name
    path = below if not path.exists() and below.exists() else path
    if path.name == STORE_FILE:  # of a saved model that was taught
        task = TaskConfig(name="taught", folder=".", holdout=0.0)
        return prepare_task(task, TaughtSource(task, path.parent.parent, tokenizer), tokenizer, cache)
    if not path.is_dir():
        return prepare_file(path, "text", tokenizer, cache)
    task = TaskConfig(name="folder", folder=".", holdout=0.0)
    return prepare_task(task, FileSource(task, path, cache), tokenizer, cache)


def prepare_file(path: Path, text_format: str, tokenizer: Tokenizer, cache: Path) -> PreparedTask:
    """One whole file as the train split of a task of its own."""
    if not path.is_file():
        raise UserError(f"There is no file {path}: check the path.")
    splits = {"train": path.name, "validation": None, "test": None}
    task = TaskConfig(name="file", folder=".", format=text_format, splits=splits, holdout=0.0)
    return prepare_task(task, FileSource(task, path.parent, cache), tokenizer, cache)


def prepare_task(
    task: TaskConfig, source: Source, tokenizer: Tokenizer, cache: Path, watch: Watch = lambda _: None
) -> PreparedTask:
    """Pack one task, unless it is in the cache."""
    template = None
    with suppress(UserError):  # a broken template matters only if there are conversations
        template = tokenizer.chat
    key = digest({
        "schema": CACHE_SCHEMA,
        "source": source.identity(),
        "settings": task.reading(),
        "tokenizer": tokenizer.fingerprint(),
        "special_in_text": tokenizer.special_in_text,
        "chat": None if template is None else template.describe(),
    })  # fmt: skip
    folder = cache / "tasks" / f"{task.name}-{key[:16]}"
    remarks, notes = source.remarks(), tuple(source.notes())
    prepared = open_task(folder, key)
    if prepared is None:
        with sole_maker(folder, lambda: watch(f"{task.name}: {WAITING}")):
            prepared = open_task(folder, key)
            if prepared is None:
                if folder.exists():
                    remarks.append(f"The packed tokens of {task.name} in the cache were damaged and are packed again.")
                _pack_task(task, source, tokenizer, folder, key, watch)
                prepared = open_task(folder, key)
    if prepared is None:
        raise UserError(f"{folder} does not hold what was written to it: check the disk.")
    return replace(prepared, messages=(*prepared.messages, *remarks), notes=(*notes, *_chat_notes(prepared)))


def _chat_notes(task: PreparedTask) -> list[str]:
    """What is learned of conversations, by split."""
    return [
        f"{task.name}/{split}: {info.chats:,} of {info.documents:,} documents are conversations. The loss is taken on "
        f"{info.counted:,} of {info.tokens:,} tokens."
        for split, info in task.splits.items()
        if info.chats and info.counted is not None
    ]


def _find_packed(name: str, earlier: Any, cache: Path) -> PreparedTask | None:
    """The packed task in the cache whose tokens are those that a run's data.json describes, if it is undamaged."""
    return next(_all_packed(name, earlier, cache), None)


def _all_packed(name: str, earlier: Any, cache: Path) -> Iterator[PreparedTask]:
    """Every such task: the same text can come from two folders."""
    for path in sorted((cache / "tasks").glob(f"{name}-*/manifest.json")) if earlier else ():
        # A manifest or data.json that cannot be read describes other tokens.
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            refuse_special(path)
            manifest = json.loads(path.read_text(encoding="utf-8"))
            is_same = manifest["name"] == name  # "fruit-*" also finds "fruit-earlier-…"
            is_same = is_same and text_hashes(manifest) == text_hashes(earlier)
            packed = open_task(path.parent, manifest["key"]) if is_same else None
            if packed is not None:
                yield packed


def remove_packed(name: str, described: Any, cache: Path) -> None:
    """Remove a task from the cache, as a run's data.json describes it. If it is needed again, it is packed again."""
    for packed in _all_packed(name, described, expanded(cache)):
        with suppress(OSError), sole_maker(packed.folder, lambda: None):  # a cache without write permission stays
            os.replace(packed.folder, partial_of(packed.folder))
            shutil.rmtree(partial_of(packed.folder))


def _pack_task(task: TaskConfig, source: Source, tokenizer: Tokenizer, folder: Path, key: str, watch: Watch) -> None:
    """Pack all splits into a folder, which appears whole or not at all."""
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    encoder = Encoder(tokenizer, task.name, counts_all=task.loss_on == "all")
    splits, messages = {}, []
    partial = partial_of(folder)
    partial.mkdir()
    try:
        for split in SPLITS:
            bad = BadRows()
            max_bytes = task.max_train_bytes if split == "train" else task.max_eval_bytes
            documents = limited(source.documents(split, bad), max_bytes)
            splits[split] = _pack_split(documents, bad, partial / split, encoder, dtype, watch)
            failpoint("pack")
            if bad.total():
                messages.append(f"{task.name}/{split}: {bad.sentence()}")
        if splits["train"].tokens == 0 and (task.holdout < 1.0 or splits["validation"].tokens == 0):
            raise UserError(f"Task '{task.name}' has no train text: {' '.join(messages) or 'its source is empty.'}")
        if encoder.num_plain:
            messages.append(
                f"{task.name}: the tokenizer has no chat template, so {encoder.num_plain:,} prompts and completions "
                "were joined as they are."
            )
        manifest = {
            "schema": CACHE_SCHEMA,
            "key": key,
            "name": task.name,
            "dtype": dtype,
            "splits": {split: info.describe() for split, info in splits.items()},
            "source": {**source.identity(), "format": task.format, "license": task.license},
            "messages": messages,
        }
        content = {**manifest, "checksum": digest(manifest)}
        write_durably(partial / "manifest.json", json.dumps(content, indent=2).encode())
        sync_folder(partial)
        failpoint("pack rename")
        replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _pack_split(
    documents: Iterator[Document], bad: BadRows, stem: Path, encoder: Encoder, dtype: str, watch: Watch
) -> SplitInfo:
    """Write the tokens of all documents to `stem`.tokens, and the position of each document to `stem`.documents.

    From the first conversation on there is also `stem`.labels, with a label for each token.
    """
    count = tokens = size = chats = counted = 0
    labels: Summed | None = None
    with about(stem), ExitStack() as files:
        ids, starts = (files.enter_context(Summed(stem.with_suffix(f".{name}"))) for name in ("tokens", "documents"))
        for group in _batches(documents, bad):
            for encoded in encoder.encode(group, bad):
                ids.write(np.asarray(encoded.ids, dtype=dtype).tobytes())
                starts.write(np.int64(tokens).tobytes())
                if encoded.labels is not None and labels is None:
                    labels = files.enter_context(Summed(stem.with_suffix(".labels")))
                    for start in range(0, tokens, BATCH_BYTES):
                        labels.write(bytes([COUNTED]) * min(BATCH_BYTES, tokens - start))
                of_tokens = np.full(len(encoded.ids), COUNTED, np.uint8) if encoded.labels is None else encoded.labels
                if labels is not None:
                    labels.write(of_tokens.tobytes())
                chats += encoded.labels is not None
                counted += int((of_tokens & COUNTED).sum())
                size += encoded.size
                tokens += len(encoded.ids)
                count += 1
            watch(f"packing {encoder.task}/{stem.name}: {count:,} documents, {tokens:,} tokens")
    info = SplitInfo(count, tokens, size, ids.sha256(), bad.to_json(), starts.sha256())
    if labels is None:
        return info
    return replace(info, chats=chats, counted=counted, labels_sha256=labels.sha256())


class Summed:
    """A file that is written once, with its checksum. At the end it waits until the disk has it."""

    def __init__(self, path: Path) -> None:
        self.path, self._checksum = path, hashlib.sha256()

    def __enter__(self) -> Summed:
        self._file = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._checksum.update(content)

    def sha256(self) -> str:
        return self._checksum.hexdigest()


def _batches(documents: Iterator[Document], bad: BadRows) -> Iterator[list[Document]]:
    """Groups of documents of about BATCH_BYTES. Of equal documents only the first is packed."""
    group: list[Document] = []
    size, seen = 0, set[bytes]()
    for document in documents:
        text_hash = hashlib.blake2b(document.content, digest_size=8).digest()
        if text_hash in seen:
            bad.add(DUPLICATE, document.where)
            continue
        if len(seen) < MAX_DOCUMENT_HASHES:
            seen.add(text_hash)
        group.append(document)
        size += len(document.text)
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _tokenizer(stream: StreamConfig, sources: dict[str, Source], cache: Path, watch: Watch) -> Tokenizer:
    """Load the tokenizer, or train it on the tasks in sorted order, so that all task orders share it."""
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
            documents = sources[task.name].documents("train", BadRows())
            for document in limited(documents, config.max_train_bytes):
                if count % 100 == 0:
                    watch(f"reading text for the tokenizer: {task.name}, {count:,} documents, {size / 1e6:.1f} MB")
                yield document.text
                count, size = count + 1, size + len(document.text.encode())
        watch(f"training a tokenizer of {config.vocab_size:,} entries on {size / 1e6:.1f} MB of text")

    return remembered(
        cache / "tokenizers" / f"{key[:16]}.json",
        make=lambda: train_bpe(texts(), config.vocab_size).to_json(),
        read=Tokenizer.from_json,
        waiting=lambda: watch(f"tokenizer: {WAITING}"),
    )
