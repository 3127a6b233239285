"""Where a task's documents come from: built-in corpora, files, or Hugging Face datasets."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from trc2.config import StreamConfig, TaskConfig
from trc2.config.stream import SplitNames
from trc2.errors import UserError, brief, did_you_mean
from trc2.stream import builtin
from trc2.stream.articles import join_articles
from trc2.stream.cache import expanded, known_checksums
from trc2.stream.document import BadRows, Document
from trc2.stream.formats import BY_LINE, text_format
from trc2.stream.holdout import Holdout, OnlyOneDocument
from trc2.stream.readers import (
    MAX_WALK,
    SUFFIXES,
    all_files,
    ending_of,
    find_files,
    kind_of,
    read_file,
    render_row,
    text_files,
)

SPLITS = ("train", "validation", "test")
MAX_NAMED = 3


class Source(Protocol):
    """Documents by split, and what identifies them."""

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]: ...

    def identity(self) -> dict[str, Any]:
        """Changes whenever the documents might; cheap to compute again."""
        ...

    def remarks(self) -> list[str]:
        """What a user should know about the source before training on it."""
        ...

    def notes(self) -> list[str]:
        """What is read, where that is not plain from the settings."""
        ...


def source_of(task: TaskConfig, stream: StreamConfig) -> Source:
    """The source a task names, with held-out validation where it brings none."""
    if task.builtin is not None:
        return BuiltinSource(task.builtin)
    if task.folder is not None and (stream.data_root is not None or task.dataset is None):
        root = expanded(stream.data_root or Path()) / expanded(task.folder)
        return FileSource(task, root, expanded(stream.cache))
    return DatasetSource(task)


def _whole(rows: Iterator[Document], task: TaskConfig, bad: BadRows) -> Iterator[Document]:
    """Documents from rows, which in some formats are only their lines."""
    return join_articles(rows, task.max_document_bytes, bad) if task.format == BY_LINE else rows


@dataclass(frozen=True)
class BuiltinSource:
    corpus: str

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        return builtin.documents(self.corpus, split)

    def identity(self) -> dict[str, Any]:
        version = importlib.metadata.version("trc2")
        return {"kind": "builtin", "corpus": self.corpus, "python": platform.python_version(), "trc2": version}

    def remarks(self) -> list[str]:
        return []

    def notes(self) -> list[str]:
        return []


class CarvingSource:
    """A source that carves validation out of train, by document, where it has no such split."""

    task: TaskConfig

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        if split == "test" or self._has_validation():
            return self._read(split, bad)
        if split == "train":
            return self._holdout.kept(self._read("train", bad))
        return self._holdout.held_out(self._read("train", BadRows()))  # train has counted the bad rows already

    @cached_property
    def _holdout(self) -> Holdout:
        bad = BadRows()
        try:
            return Holdout.of(self._read("train", bad), self.task.holdout)
        except OnlyOneDocument:
            raise UserError(" ".join([self._only_one_document(), *([bad.sentence()] if bad.total() else [])])) from None

    def _has_validation(self) -> bool:
        raise NotImplementedError

    def _read(self, split: str, bad: BadRows) -> Iterator[Document]:
        """All documents of a split; none if the source does not have it, but an error if it is train."""
        raise NotImplementedError

    def _only_one_document(self) -> str:
        """The sentence for a train split of which nothing can be held out."""
        raise NotImplementedError


class SourceGone(UserError):
    """The files of a task are not there, or not any more; a run that packed them may still find its tokens."""


@dataclass(frozen=True)
class FileSource(CarvingSource):
    """Files below a folder, or a single file.

    The patterns of `splits` say which file is in which split. Where none is called `train`, all text that no other
    split takes is train text, and documents are known by their path below the folder.
    """

    task: TaskConfig
    root: Path
    cache: Path | None = None  # where the checksums of its files are kept

    def files(self, split: str) -> list[Path]:
        return self._files[split]

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        if self.root.is_file():
            return {split: [self.root] if split == "train" else [] for split in SPLITS}
        if not self.root.is_dir():
            raise SourceGone(
                f"Task '{self.task.name}' reads {self.root}, which is not a folder or file: set stream.data_root to "
                f"the folder that contains '{self.task.folder}'."
            )
        if self.root.resolve() == Path(self.root.resolve().anchor):  # reading all of it would take hours
            raise UserError(f"Task '{self.task.name}' reads {self.root}, the whole disk: name a folder of text.")
        patterns = {split: getattr(self.task.splits, split) for split in SPLITS}
        found = {split: [] if p is None else find_files(self.root, p) for split, p in patterns.items()}
        if not found["train"] and patterns["train"] == SplitNames().train:
            taken = {path for files in found.values() for path in files}
            found["train"] = [path for path in text_files(self.root, most=None) if path not in taken]
        return found

    @cached_property
    def _takes_all(self) -> bool:
        """Whether train is whatever text there is, not what is called so."""
        named = self.root.is_dir() and find_files(self.root, self.task.splits.train)
        return self.root.is_dir() and not named

    def _has_validation(self) -> bool:
        return bool(self.files("validation"))

    def _only_one_document(self) -> str:
        return (
            f"Task '{self.task.name}' has only one word of train text in {self.root}, so nothing can be held out for "
            "validation: put more text there."
        )

    def _read(self, split: str, bad: BadRows) -> Iterator[Document]:
        """All documents in the files of a split; an article may begin in one file and end in the next."""
        return _whole(self._rows(split, bad), self.task, bad)

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        render, by_line = text_format(self.task.format), self.task.format == BY_LINE
        files = self.files(split)
        if split == "train" and not files:
            raise SourceGone(self._no_train_files())
        for path in files:
            name = path.relative_to(self.root).as_posix() if self._takes_all else None
            yield from read_file(
                path, render, self.task.max_document_bytes, bad, by_line=by_line, name=name, encoding=self.task.encoding
            )

    def identity(self) -> dict[str, Any]:
        if not self.files("train"):
            raise SourceGone(self._no_train_files())
        base = self.root if self.root.is_dir() else self.root.parent
        paths = [path for split in SPLITS for path in self.files(split)]
        # Not their times: an archive may be made so that all files in it have the same one, whatever they say.
        sums = known_checksums(paths, self.cache and self.cache / "sources")
        listing = [[path.relative_to(base).as_posix(), found] for path, found in zip(paths, sums, strict=True)]
        return {"kind": "files", "files": listing}

    def notes(self) -> list[str]:
        """What is taken, and what else lies there."""
        counts = {split: len(files) for split, files in self._files.items() if files}
        endings = Counter(ending_of(path) or "without ending" for files in self._files.values() for path in files)
        kinds = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5))
        splits = "" if set(counts) == {"train"} else f": {', '.join(f'{n} {split}' for split, n in counts.items())}"
        total = sum(counts.values())
        note = f"{self.task.name}: {total} file{'s' if total > 1 else ''} taken ({kinds}{', …' * (len(endings) > 5)})"
        other = self._no_text()
        if other:
            named = ", ".join(path.name for path in other[:MAX_NAMED]) + ", …" * (len(other) > MAX_NAMED)
            return [f"{note}{splits}; {len(other)} of other kinds ignored ({named})."]
        return [f"{note}{splits}."]

    def remarks(self) -> list[str]:
        """Text that lies there and is not read; where train is one file by its exact name, that is what was wanted."""
        if self.root.is_file() or (self.root / self.task.splits.train).is_file():
            return []
        ignored = self._ignored()
        if not ignored:
            return []
        if len(ignored) == 1:
            what = f"{ignored[0]} is in no split and was ignored: name it"
        else:
            what = f"{len(ignored)} files are in no split and were ignored (first: {ignored[0]}): name them"
        return [f"{self.task.name}: {what} by splits.train, e.g. splits.train='{_pattern_for(ignored[0])}'."]

    def _ignored(self) -> list[Path]:
        """Files of a known kind below the folder that no split takes."""
        taken = {path for split in SPLITS for path in self.files(split)}
        return [path.relative_to(self.root) for path in text_files(self.root) if path not in taken]

    def _no_text(self) -> list[Path]:
        """Files that are no text, as far as their endings tell; none of interest beside a file named on its own."""
        if self.root.is_file() or (self.root / self.task.splits.train).is_file():
            return []
        return [path for path in all_files(self.root, most=MAX_WALK) if kind_of(path) is None]

    def _no_train_files(self) -> str:
        sentence = f"Task '{self.task.name}' has no train files in {self.root}"
        if ignored := self._ignored():
            return (
                f"{sentence}, but {len(ignored)} of other names (first: {ignored[0]}): call them train.jsonl, "
                f"train-1.txt and so on, or set its splits.train, e.g. '{_pattern_for(ignored[0])}'."
            )
        others = self._no_text()
        found = f" ({len(others)} of no known kind, first: {others[0].name})" if others else ""
        return f"{sentence}{found}: put text there, {', '.join(SUFFIXES)} or so, also with .gz or .zst."


def _pattern_for(path: Path) -> str:
    """A pattern that finds a file and others like it."""
    return f"{'' if path.parent == Path() else '**/'}*{ending_of(path)}"


@dataclass(frozen=True)
class DatasetSource(CarvingSource):
    """A Hugging Face dataset; with `streaming` no more is fetched than is read."""

    task: TaskConfig

    def _has_validation(self) -> bool:
        return self.task.splits.validation in self._known_splits

    def _only_one_document(self) -> str:
        return (
            f"The dataset '{self.task.dataset}' has one train document and no split "
            f"'{self.task.splits.validation}', so none can be held out for validation: choose a larger one."
        )

    def _read(self, split: str, bad: BadRows) -> Iterator[Document]:
        return _whole(self._rows(split, bad), self.task, bad)

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        name = getattr(self.task.splits, split)
        if name not in self._known_splits:
            if split == "train":
                raise UserError(
                    f"The dataset '{self.task.dataset}' has no split '{name}': "
                    f"{did_you_mean(str(name), self._known_splits)}"
                )
            return
        render = text_format(self.task.format)
        with self._asking() as datasets:
            rows = datasets.load_dataset(self.task.dataset, self.task.subset, split=name, streaming=self.task.streaming)
            for number, row in enumerate(rows):
                where = f"{self.task.dataset}/{name}:{number}"
                yield from render_row(row, where, render, self.task.max_document_bytes, bad)

    @cached_property
    def _known_splits(self) -> list[str]:
        with self._asking() as datasets:
            return list(datasets.get_dataset_split_names(self.task.dataset, self.task.subset))

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The datasets library; whatever goes wrong there is one sentence here."""
        try:
            import datasets
        except ImportError:
            raise UserError(
                f"Task '{self.task.name}' reads the dataset '{self.task.dataset}', which needs datasets: "
                "pip install '.[data]' in the checkout, or set stream.data_root to local files."
            ) from None
        try:
            yield datasets
        except UserError:
            raise
        except (OSError, ValueError, TypeError, datasets.exceptions.DatasetsError) as error:
            raise UserError(
                f"The dataset '{self.task.dataset}' ({self.task.subset}) cannot be loaded: {brief(error, 200)}; check "
                "its name and the network, or set stream.data_root to local files."
            ) from None

    def identity(self) -> dict[str, Any]:
        return {"kind": "dataset", "id": self.task.dataset, "subset": self.task.subset}

    def remarks(self) -> list[str]:
        return []

    def notes(self) -> list[str]:
        return []


def has_documents(task: TaskConfig, stream: StreamConfig, count: int) -> bool:
    """Whether a task's train text has at least so many documents, before any of them becomes validation."""
    source = source_of(task.replace(holdout=0.0), stream)
    return sum(1 for _ in islice(source.documents("train", BadRows()), count)) == count


def check_task_names(wanted: Iterable[str], known: list[str]) -> None:
    for name in wanted:
        if name not in known:
            raise UserError(f"There is no task '{name}' in this stream: {did_you_mean(name, known)}")
