"""Sources of a task's documents: built-in corpora, files, or Hugging Face datasets."""

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
from typing import TYPE_CHECKING, Any

from trc2.config import StreamConfig, TaskConfig
from trc2.config.stream import SplitNames
from trc2.errors import UserError, brief, did_you_mean
from trc2.stream import builtin
from trc2.stream.cache import expanded, known_checksums
from trc2.stream.document import BY_LINE, BadRows, Document, join_articles, render_row, text_format
from trc2.stream.holdout import Holdout, OnlyOneDocument
from trc2.stream.readers import MAX_WALK, SUFFIXES, all_files, ending_of, find_files, kind_of, read_file, text_files
from trc2.stream.tokenizer import Tokenizer
from trc2.system.files import refuse_root

if TYPE_CHECKING:
    from trc2.recall.store import Store

SPLITS = ("train", "validation", "test")
MAX_NAMED = 3


class SourceGone(UserError):
    """The files of a task are missing. A resumed run may still have its packed tokens in the cache."""


class Source:
    """Documents by split, and what identifies them."""

    task: TaskConfig

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        """The documents of a split. Without a validation split, some train documents are held out for it."""
        if split == "test" or self._has_validation():
            return self._read(split, bad)
        if split == "train":
            return self._holdout.kept(self._read("train", bad))
        return self._holdout.held_out(self._read("train", BadRows()))  # train has counted the bad rows already

    def identity(self) -> dict[str, Any]:
        """Changes whenever the documents might change. It is cheap to compute again."""
        raise NotImplementedError

    def remarks(self) -> list[str]:
        """Warnings before training on this source."""
        return []

    def notes(self) -> list[str]:
        """What is read, if the settings do not show it."""
        return []

    @cached_property
    def _holdout(self) -> Holdout:
        bad = BadRows()
        try:
            return Holdout.of(self._read("train", bad), self.task.holdout)
        except OnlyOneDocument as only:
            skipped = f" {bad.sentence()}" if bad.total() else ""
            raise UserError(
                f"Task '{self.task.name}' has only {only} of train text and no validation text, so nothing can be "
                f"held out for validation: put more text there.{skipped}"
            ) from None

    def _read(self, split: str, bad: BadRows) -> Iterator[Document]:
        """All documents of a split. In the format of WikiText a row is one line of an article."""
        rows = self._rows(split, bad)
        return join_articles(rows, self.task.max_document_bytes, bad) if self.task.format == BY_LINE else rows

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        """All rows of a split. A missing split has no rows, but a missing train split is an error."""
        raise NotImplementedError

    def _has_validation(self) -> bool:
        raise NotImplementedError


def source_of(task: TaskConfig, stream: StreamConfig) -> Source:
    """The source that a task names."""
    if task.builtin is not None:
        return BuiltinSource(task)
    if task.folder is not None and (stream.data_root is not None or task.dataset is None):
        root = expanded(stream.data_root or Path()) / expanded(task.folder)
        return FileSource(task, root, expanded(stream.cache))
    return DatasetSource(task)


def refuse_output_among_texts(folder: Path, stream: StreamConfig) -> None:
    """Refuse to write into a folder whose text files are all read: the run's own files would become its text."""
    for task in stream.tasks:
        source = source_of(task, stream)
        if (
            isinstance(source, FileSource)
            and source.takes_all
            and folder.resolve().is_relative_to(source.root.resolve())
        ):
            raise UserError(
                f"{folder} is inside {source.root}, and task '{task.name}' reads all text files there: choose an "
                "output folder outside it."
            )


@dataclass(frozen=True)
class BuiltinSource(Source):
    """A corpus that comes with Python or is computed. See `trc2.stream.builtin`."""

    task: TaskConfig

    def documents(self, split: str, bad: BadRows) -> Iterator[Document]:
        return builtin.documents(str(self.task.builtin), split)

    def identity(self) -> dict[str, Any]:
        version = importlib.metadata.version("trc2")
        return {"kind": "builtin", "corpus": self.task.builtin, "python": platform.python_version(), "trc2": version}


@dataclass(frozen=True)
class TaughtSource(Source):
    """The documents that a saved model was taught, in the order in which they were."""

    task: TaskConfig
    model: Path
    tokenizer: Tokenizer

    @cached_property
    def store(self) -> Store:
        from trc2.recall.store import read_store  # needs torch

        store = read_store(self.model, None, self.tokenizer.fingerprint())
        if store is None:
            raise SourceGone(f"{self.model} has no taught documents any more: teach them again, or start a new run.")
        return store

    def identity(self) -> dict[str, Any]:
        return {"kind": "taught", "documents": [document.sha256 for document in self.store.documents]}

    def _has_validation(self) -> bool:
        return True  # nothing is held out

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        for document in self.store.documents if split == "train" else ():
            begin = len(self.tokenizer.begin_of_text)
            yield Document(self.tokenizer.decode(document.tokens[begin:-1].tolist()), document.source)


@dataclass(frozen=True)
class FileSource(Source):
    """Files below a folder, or a single file.

    The patterns of `splits` assign files to splits. If no file is called `train`, all text that no other split takes
    is train text, and the documents are named by their path below the folder.
    """

    task: TaskConfig
    root: Path
    cache: Path | None = None  # folder for the checksums of the files

    @cached_property
    def files(self) -> dict[str, list[Path]]:
        """The files of every split."""
        if self.root.is_file():
            return {split: [self.root] if split == "train" else [] for split in SPLITS}
        if not self.root.is_dir():
            raise SourceGone(
                f"Task '{self.task.name}' reads {self.root}, which is not a folder or file: set stream.data_root to "
                f"the folder that contains '{self.task.folder}'."
            )
        refuse_root(self.root, f"texts of task '{self.task.name}'")
        patterns = {split: getattr(self.task.splits, split) for split in SPLITS}
        files = {split: [] if p is None else find_files(self.root, p) for split, p in patterns.items()}
        if not files["train"] and patterns["train"] == SplitNames().train:
            taken = {path for paths in files.values() for path in paths}
            files["train"] = [path for path in text_files(self.root, most=None) if path not in taken]
        return files

    @property
    def takes_all(self) -> bool:
        """Whether all text files below the folder are train text, because none is called so."""
        is_default = self.task.splits.train == SplitNames().train
        return is_default and self.root.is_dir() and not find_files(self.root, self.task.splits.train)

    def _has_validation(self) -> bool:
        return bool(self.files["validation"])

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        render, by_line = text_format(self.task.format, with_chat=True), self.task.format == BY_LINE
        if split == "train" and not self.files["train"]:
            raise SourceGone(self._no_train_files())
        takes_all = self.takes_all
        for path in self.files[split]:
            name = path.relative_to(self.root).as_posix() if takes_all else path.name
            yield from read_file(
                path, render, self.task.max_document_bytes, bad, by_line=by_line, name=name, encoding=self.task.encoding
            )

    def identity(self) -> dict[str, Any]:
        if not self.files["train"]:
            raise SourceGone(self._no_train_files())
        base = self.root if self.root.is_dir() else self.root.parent
        paths = [path for split in SPLITS for path in self.files[split]]
        # Checksums, not modification times: an archive may give all its files the same time.
        checksums = known_checksums(paths, self.cache and self.cache / "sources")
        listing = [[path.relative_to(base).as_posix(), sha256] for path, sha256 in zip(paths, checksums, strict=True)]
        return {"kind": "files", "files": listing}

    def notes(self) -> list[str]:
        """The files that are taken, by kind and split, and files of other kinds."""
        counts = {split: len(files) for split, files in self.files.items() if files}
        endings = Counter(ending_of(path) or "without ending" for files in self.files.values() for path in files)
        kinds = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5))
        splits = "" if set(counts) == {"train"} else f": {', '.join(f'{n} {split}' for split, n in counts.items())}"
        total = sum(counts.values())
        note = f"{self.task.name}: {total} file{'s' if total > 1 else ''} taken ({kinds}{', …' * (len(endings) > 5)})"
        other = self._files_without_text()
        if other:
            named = ", ".join(path.name for path in other[:MAX_NAMED]) + ", …" * (len(other) > MAX_NAMED)
            return [f"{note}{splits}; {len(other)} of other kinds ignored ({named})."]
        return [f"{note}{splits}."]

    def remarks(self) -> list[str]:
        """Text files that no split takes."""
        ignored = [] if self._is_named_file() else self._ignored()
        if not ignored:
            return []
        if len(ignored) == 1:
            what = f"{ignored[0]} is in no split and was ignored: name it"
        else:
            what = f"{len(ignored)} files are in no split and were ignored (first: {ignored[0]}): name them"
        return [f"{self.task.name}: {what} by splits.train, e.g. splits.train='{_pattern_for(ignored[0])}'."]

    def _is_named_file(self) -> bool:
        """Whether the train text is one file that the settings name exactly. Then other files do not matter."""
        return self.root.is_file() or (self.root / self.task.splits.train).is_file()

    def _ignored(self) -> list[Path]:
        taken = {path for files in self.files.values() for path in files}
        return [path.relative_to(self.root) for path in text_files(self.root) if path not in taken]

    def _files_without_text(self) -> list[Path]:
        if self._is_named_file():
            return []
        return [path for path in all_files(self.root, MAX_WALK) if kind_of(path) is None]

    def _no_train_files(self) -> str:
        sentence = f"Task '{self.task.name}' has no train files in {self.root}"
        if ignored := self._ignored():
            return (
                f"{sentence}, but {len(ignored)} of other names (first: {ignored[0]}): call them train.jsonl, "
                f"train-1.txt and so on, or set its splits.train, e.g. '{_pattern_for(ignored[0])}'."
            )
        other = self._files_without_text()
        counted = f" ({len(other)} of no known kind, first: {other[0].name})" if other else ""
        return f"{sentence}{counted}: put text there, {', '.join(SUFFIXES)} or so, also with .gz or .zst."


def _pattern_for(path: Path) -> str:
    """A pattern that matches a file and others like it."""
    return f"{'' if path.parent == Path() else '**/'}*{ending_of(path)}"


@dataclass(frozen=True)
class DatasetSource(Source):
    """A Hugging Face dataset. With `streaming` it is downloaded only as far as it is read."""

    task: TaskConfig

    def _has_validation(self) -> bool:
        return self.task.splits.validation in self._known_splits

    def _rows(self, split: str, bad: BadRows) -> Iterator[Document]:
        name = getattr(self.task.splits, split)
        if name not in self._known_splits:
            if split == "train":
                raise UserError(
                    f"The dataset '{self.task.dataset}' has no split '{name}': "
                    f"{did_you_mean(str(name), self._known_splits)}"
                )
            return
        render = text_format(self.task.format, with_chat=True)
        with self._datasets() as datasets:
            rows = datasets.load_dataset(self.task.dataset, self.task.subset, split=name, streaming=self.task.streaming)
            for number, row in enumerate(rows):
                where = f"{self.task.dataset}/{name}:{number}"
                yield from render_row(row, where, render, self.task.max_document_bytes, bad)

    @cached_property
    def _known_splits(self) -> list[str]:
        with self._datasets() as datasets:
            return list(datasets.get_dataset_split_names(self.task.dataset, self.task.subset))

    @contextmanager
    def _datasets(self) -> Iterator[Any]:
        """The datasets library. Its errors become one sentence."""
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


def has_documents(task: TaskConfig, stream: StreamConfig, count: int) -> bool:
    """Whether a task has at least `count` train documents, before any is held out for validation."""
    source = source_of(task.replace(holdout=0.0), stream)
    return sum(1 for _ in islice(source.documents("train", BadRows()), count)) == count


def check_task_names(wanted: Iterable[str], known: list[str]) -> None:
    for name in wanted:
        if name not in known:
            raise UserError(f"There is no task '{name}' in this stream: {did_you_mean(name, known)}")
