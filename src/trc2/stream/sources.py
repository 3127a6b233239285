"""Where a task's documents come from: built-in corpora, files, or Hugging Face datasets."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError, did_you_mean
from trc2.stream import builtin
from trc2.stream.document import BadRows, Document
from trc2.stream.files import find_files, read_file, render_row
from trc2.stream.formats import text_format

SPLITS = ("train", "validation", "test")


class Source(Protocol):
    """Documents by split, and what identifies them."""

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]: ...

    def identity(self) -> dict[str, Any]:
        """Changes whenever the documents might; cheap to compute."""
        ...


def source_of(task: TaskConfig, stream: StreamConfig) -> Source:
    """The source a task names, with held-out validation where it brings none."""
    if task.builtin is not None:
        return BuiltinSource(task.builtin)
    if task.folder is not None and (stream.data_root is not None or task.dataset is None):
        return FileSource(task, (stream.data_root or Path()).expanduser() / task.folder)
    return DatasetSource(task)


@dataclass(frozen=True)
class BuiltinSource:
    corpus: str

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        return builtin.documents(self.corpus, split)

    def identity(self) -> dict[str, Any]:
        version = importlib.metadata.version("trc2")
        return {"kind": "builtin", "corpus": self.corpus, "python": platform.python_version(), "trc2": version}


@dataclass(frozen=True)
class FileSource:
    """Files below a folder. A split without files of its own is carved out of train, by document."""

    task: TaskConfig
    root: Path

    def files(self, split: str) -> list[Path]:
        if not self.root.is_dir():
            raise UserError(
                f"Task '{self.task.name}' reads {self.root}, which is not a folder: set stream.data_root to the folder "
                f"that contains '{self.task.folder}'."
            )
        pattern = getattr(self.task.splits, split)
        return [] if pattern is None else find_files(self.root, pattern)

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        render = text_format(self.task.format)
        files = self.files(split)
        carved = not files and split == "validation"
        if not files and split == "train":
            raise UserError(
                f"Task '{self.task.name}' has no train files in {self.root}: put train.jsonl, train.txt or "
                "train.parquet there, or set its splits.train."
            )
        held_out = carved or (split == "train" and not self.files("validation"))
        for path in self.files("train") if carved else files:
            for document in read_file(path, render, self.task.max_document_bytes, bad):
                if not held_out or is_held_out(document.where, self.task.holdout) == carved:
                    yield document

    def identity(self) -> dict[str, Any]:
        listing = [
            [path.relative_to(self.root).as_posix(), path.stat().st_size, path.stat().st_mtime_ns]
            for split in SPLITS
            for path in self.files(split)
        ]
        return {"kind": "files", "files": listing}


@dataclass(frozen=True)
class DatasetSource:
    """A Hugging Face dataset; with `streaming` no more is fetched than is read."""

    task: TaskConfig

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        """A split the dataset does not have is carved out of train (validation) or left empty (test)."""
        known = self._known_splits()
        name = getattr(self.task.splits, split)
        has_validation = self.task.splits.validation in known
        carved = split == "validation" and not has_validation
        if name not in known and not carved:
            if split == "train":
                raise UserError(
                    f"The dataset '{self.task.dataset}' has no split '{name}': {did_you_mean(str(name), known)}"
                )
            return
        source = self.task.splits.train if carved else name
        held_out = carved or (split == "train" and not has_validation)
        render = text_format(self.task.format)
        for number, row in enumerate(self._load(source)):
            where = f"{self.task.dataset}/{source}:{number}"
            if held_out and is_held_out(where, self.task.holdout) != carved:
                continue
            yield from render_row(row, where, render, self.task.max_document_bytes, bad)

    def _known_splits(self) -> list[str]:
        return self._ask(lambda datasets: list(datasets.get_dataset_split_names(self.task.dataset, self.task.subset)))

    def _load(self, split: str) -> Any:
        return self._ask(
            lambda datasets: datasets.load_dataset(
                self.task.dataset, self.task.subset, split=split, streaming=self.task.streaming
            )
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Ask the datasets library; whatever goes wrong there is one sentence here."""
        try:
            import datasets
        except ImportError:
            raise UserError(
                f"Task '{self.task.name}' reads the dataset '{self.task.dataset}', which needs datasets: "
                "pip install 'trc2[data]', or set stream.data_root to local files."
            ) from None
        try:
            return question(datasets)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"The dataset '{self.task.dataset}' ({self.task.subset}) cannot be loaded: {reason}; check its name "
                "and the network, or set stream.data_root to local files."
            ) from None

    def identity(self) -> dict[str, Any]:
        return {"kind": "dataset", "id": self.task.dataset, "subset": self.task.subset}


def is_held_out(where: str, share: float) -> bool:
    """A fixed share of documents, chosen by where they stand."""
    place = int.from_bytes(hashlib.blake2b(where.encode(), digest_size=8).digest(), "big") / 2**64
    return place < share


def check_task_names(wanted: list[str], known: list[str]) -> None:
    for name in wanted:
        if name not in known:
            raise UserError(f"There is no task '{name}' in this stream: {did_you_mean(name, known)}")
