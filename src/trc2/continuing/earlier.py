"""Held-out documents of earlier weeks: a bounded choice for each task name, on which later weeks are judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trc2.config import RunConfig, TaskConfig
from trc2.continuing.heldout import held_out, held_out_split
from trc2.runs.folder import RunFolder
from trc2.stream.conversation import PackedRow, packed_row_of
from trc2.stream.packed import COUNTED, PreparedStream, PreparedTask
from trc2.stream.texts import keep_texts
from trc2.stream.tokenizer import Tokenizer
from trc2.system.files import reading, write_durably

SUFFIX = "-earlier"  # of the earlier text of a task that is taught again
Kept: TypeAlias = str | PackedRow  # a document, or a conversation as it was packed
MAX_DOCUMENTS, MAX_BYTES = 200, 500_000  # of each task name, over all weeks together


def base_name(task: str) -> str:
    """The name that a user gave: `news` of news and of news-earlier."""
    return task.removesuffix(SUFFIX)


def choose(documents: Iterable[Kept]) -> list[Kept]:
    """The documents with the smallest hashes, within the bounds.

    The choice from a choice and new documents is the choice from all documents, so weeks can be added one by one.
    """
    by_hash = {hashlib.sha256(_text_of(kept)).hexdigest(): kept for kept in documents}
    chosen: list[Kept] = []
    size = 0
    for _, kept in sorted(by_hash.items(), key=lambda item: item[0])[:MAX_DOCUMENTS]:
        size += len(_text_of(kept))
        if size > MAX_BYTES and len(chosen) >= 2:
            break
        chosen.append(kept)
    return chosen


def _text_of(kept: Kept) -> bytes:
    return (kept if isinstance(kept, str) else kept.text).encode(errors="surrogatepass")


def row_of(kept: Kept) -> dict[str, Any]:
    """The row of a file that gives the document again."""
    return {"text": kept} if isinstance(kept, str) else kept.to_row()


def read_rows(path: Path) -> list[Kept]:
    """The documents of a file that `write_held_out` wrote."""
    with reading(path):  # as bytes: a line of text would end at U+2028, too
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [packed_row_of(row) or str(row["text"]) for row in rows]


def held_out_documents(run: RunFolder, config: RunConfig, prepared: PreparedStream) -> dict[str, list[Kept]]:
    """The chosen documents of every task that a run has learned or keeps when it ends, by the name its user gave.

    Documents of the past that the run itself trains on or replays are not among them.
    """
    assert config.stream is not None
    lineage = run.lineage()
    names = {span.task for span in run.schedule(config).spans}
    if lineage is not None:
        names |= set(lineage.kept)
        if lineage.first_step == 0:  # all its other texts are of the past
            names |= {task.name for task in config.stream.tasks}
    judged = {} if lineage is None else held_out(config, lineage, prepared)
    documents: dict[str, list[Kept]] = {}
    for task in config.stream.tasks:
        if task.name in names:
            packed = prepared.tasks[task.name]
            texts = list(_packed_texts(packed, held_out_split(packed), prepared.tokenizer))
            if task.name in judged:
                texts = [text for text, is_kept in zip(texts, judged[task.name].is_judged, strict=True) if is_kept]
            documents.setdefault(base_name(task.name), []).extend(texts)
    return {name: choose(texts) for name, texts in documents.items() if texts}


def _packed_texts(task: PreparedTask, split: str, tokenizer: Tokenizer) -> Iterator[Kept]:
    """The documents as they were packed: their files may be gone by now, or hold other text.

    A conversation keeps its tokens and labels, because the special tokens in it could not be read back from text.
    """
    tokens, starts, labels = task.tokens(split), task.document_starts(split), task.labels(split)
    begin = len(tokenizer.begin_of_text)
    for start, end, is_chat in zip(starts, [*starts[1:], len(tokens)], task.is_chat(split), strict=True):
        ids = tokens[start:end].tolist()
        if is_chat and labels is not None:
            yield PackedRow(tokenizer.decode(ids), tuple(ids), _spans(np.asarray(labels[start:end]) & COUNTED > 0))
        else:
            yield tokenizer.decode(ids[begin:-1])  # without the end of text


def _spans(is_counted: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """The runs of True, each as its first place and the place after its last."""
    changes = np.flatnonzero(np.diff(is_counted, prepend=False, append=False)).tolist()
    return tuple(zip(changes[::2], changes[1::2], strict=True))


def write_held_out(folder: Path, documents: dict[str, list[Kept]]) -> None:
    """One NAME.jsonl for each task name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in documents.items():
        rows = "".join(json.dumps(row_of(kept), ensure_ascii=False) + "\n" for kept in texts)
        write_durably(folder / f"{name}.jsonl", rows.encode(errors="surrogatepass"))


def read_again(run: RunFolder) -> dict[str, list[Kept]]:
    """The chosen documents of a finished run, from its packed tokens, which are packed again if the cache is gone."""
    return held_out_documents(run, run.config(), run.prepared())


def earlier_tasks(run: RunFolder, taught: Iterable[str]) -> list[TaskConfig]:
    """The texts of the past as tasks that are measured and not trained, for a child that is taught these tasks."""
    config = run.config()
    assert config.stream is not None
    if run.held_out.is_dir():
        files = {path.stem: path.resolve() for path in sorted(run.held_out.glob("*.jsonl"))}
    else:
        files = {
            name: keep_texts(name, map(row_of, texts), config.stream.cache) / "train.jsonl"
            for name, texts in read_again(run).items()
        }
    again = set(taught)
    return [
        TaskConfig(name=f"{name}{SUFFIX}" if name in again else name, folder=str(path), holdout=1.0)
        for name, path in files.items()
    ]
