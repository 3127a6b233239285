"""Held-out documents of earlier weeks: a bounded choice for each task name, on which later weeks are judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from trc2.config import RunConfig, TaskConfig
from trc2.continuing.heldout import held_out, held_out_split
from trc2.runs.folder import RunFolder
from trc2.stream.packed import PreparedStream, PreparedTask
from trc2.stream.prepare import prepare_stream
from trc2.stream.texts import keep_texts
from trc2.stream.tokenizer import Tokenizer
from trc2.system.files import write_durably

SUFFIX = "-earlier"  # of the earlier text of a task that is taught again
MAX_DOCUMENTS, MAX_BYTES = 200, 500_000  # of each task name, over all weeks together


def base_name(task: str) -> str:
    """The name that a user gave: `news` of news and of news-earlier."""
    return task.removesuffix(SUFFIX)


def choose(documents: Iterable[str]) -> list[str]:
    """The documents with the smallest hashes, within the bounds.

    The choice from a choice and new documents is the choice from all documents, so weeks can be added one by one.
    """
    by_hash = {hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(): text for text in documents}
    chosen: list[str] = []
    size = 0
    for _, text in sorted(by_hash.items())[:MAX_DOCUMENTS]:
        size += len(text.encode(errors="surrogatepass"))
        if size > MAX_BYTES and len(chosen) >= 2:
            break
        chosen.append(text)
    return chosen


def held_out_documents(run: RunFolder, config: RunConfig, prepared: PreparedStream) -> dict[str, list[str]]:
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
    documents: dict[str, list[str]] = {}
    for task in config.stream.tasks:
        if task.name in names:
            packed = prepared.tasks[task.name]
            texts = list(_packed_texts(packed, held_out_split(packed), prepared.tokenizer))
            if task.name in judged:
                texts = [text for text, is_kept in zip(texts, judged[task.name].is_judged, strict=True) if is_kept]
            documents.setdefault(base_name(task.name), []).extend(texts)
    return {name: choose(texts) for name, texts in documents.items() if texts}


def _packed_texts(task: PreparedTask, split: str, tokenizer: Tokenizer) -> Iterator[str]:
    """The documents as they were packed: their files may be gone by now, or hold other text."""
    tokens, starts = task.tokens(split), task.document_starts(split)
    begin = len(tokenizer.begin_of_text)
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        yield tokenizer.decode(tokens[start + begin : end - 1].tolist())  # without the end of text


def write_held_out(folder: Path, documents: dict[str, list[str]]) -> None:
    """One NAME.jsonl for each task name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in documents.items():
        rows = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        write_durably(folder / f"{name}.jsonl", rows.encode(errors="surrogatepass"))


def read_again(run: RunFolder) -> dict[str, list[str]]:
    """The chosen documents of a finished run, from its packed tokens, which are packed again if the cache is gone."""
    config = run.config()
    assert config.stream is not None
    prepared = prepare_stream(config.stream, tokenizer=run.tokenizer(), known=run.data()["tasks"])
    run.check_data(prepared)
    return held_out_documents(run, config, prepared)


def earlier_tasks(run: RunFolder, taught: Iterable[str]) -> list[TaskConfig]:
    """The texts of the past as tasks that are measured and not trained, for a child that is taught these tasks."""
    config = run.config()
    assert config.stream is not None
    if run.held_out.is_dir():
        files = {path.stem: path.resolve() for path in sorted(run.held_out.glob("*.jsonl"))}
    else:
        files = {
            name: keep_texts(name, texts, config.stream.cache) / "train.jsonl"
            for name, texts in read_again(run).items()
        }
    again = set(taught)
    return [
        TaskConfig(name=f"{name}{SUFFIX}" if name in again else name, folder=str(path), holdout=1.0)
        for name, path in files.items()
    ]
