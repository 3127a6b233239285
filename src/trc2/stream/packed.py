"""Packed tokens on disk: the splits of a task, and all tasks of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trc2.errors import UserError
from trc2.stream.cache import digest, is_whole
from trc2.stream.tokenizer import Tokenizer

COUNTED, IN_CHAT = 1, 2  # bits of a label: the loss is taken on the token, the token is of a conversation
SCHEMA = 1  # of what `PreparedStream.describe` returns, which run folders keep


@dataclass(frozen=True)
class SplitInfo:
    """Sizes and checksums of one packed split."""

    documents: int
    tokens: int
    bytes: int
    sha256: str
    bad_rows: dict[str, Any]
    documents_sha256: str = ""
    # Only of a split with conversations:
    chats: int | None = None  # how many of the documents are conversations
    counted: int | None = None  # tokens on which the loss is taken
    labels_sha256: str | None = None

    @property
    def content(self) -> str:
        """Changes if and only if a token or a label does."""
        return self.sha256 if self.labels_sha256 is None else digest([self.sha256, self.labels_sha256])

    def describe(self) -> dict[str, Any]:
        """As JSON, without what this split does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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

    def tokens(self, split: str) -> NDArray[Any]:
        """All tokens of a split, with end of text between documents. They are read from disk as needed."""
        return self._mapped(f"{split}.tokens", np.dtype(self.dtype), self.splits[split].tokens)

    def labels(self, split: str) -> NDArray[np.uint8] | None:
        """A label for each token, of the bits above. None without conversations: then all tokens count."""
        if self.splits[split].labels_sha256 is None:
            return None
        return self._mapped(f"{split}.labels", np.dtype(np.uint8), self.splits[split].tokens)

    def is_chat(self, split: str) -> NDArray[np.bool_]:
        """Which documents are conversations."""
        labels = self.labels(split)
        if labels is None:
            return np.zeros(self.splits[split].documents, dtype=bool)
        return np.asarray(labels[np.asarray(self.document_starts(split))] & IN_CHAT) > 0

    def read_tokens(self, split: str, start: int, count: int) -> NDArray[Any]:
        """Some tokens read into memory. Reading a whole split this way does not keep it in memory."""
        width = np.dtype(self.dtype).itemsize
        return np.fromfile(self.folder / f"{split}.tokens", dtype=self.dtype, count=count, offset=start * width)

    def document_starts(self, split: str) -> NDArray[Any]:
        """The position of the first token of each document."""
        return self._mapped(f"{split}.documents", np.dtype(np.int64), self.splits[split].documents)

    def _mapped(self, name: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        if count == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype=dtype)
        path = self.folder / name
        if path.stat().st_size != count * dtype.itemsize:
            raise self._changed()
        return np.memmap(path, dtype=dtype, mode="r")

    def has_text_of(self, described: Any) -> bool:
        """Whether a run's data.json describes these tokens and labels. A damaged description is of other text."""
        with suppress(LookupError, TypeError, AttributeError):
            return text_hashes(described) == text_hashes(self.describe())
        return False

    def describe(self) -> dict[str, Any]:
        """A description for the run folder, without the text."""
        return {"splits": {split: info.describe() for split, info in self.splits.items()}, "source": self.source}

    def check_unchanged(self) -> None:
        """Refuse packed tokens that changed after they were opened. Only files that were touched are read."""
        if not is_whole(self.folder, file_checksums(self.splits)):
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
    """All tasks of a stream, their tokenizer, and the overlap of evaluation text with train text."""

    tasks: dict[str, PreparedTask]
    tokenizer: Tokenizer
    overlap: dict[str, dict[str, float]]
    seeds: tuple[PreparedTask, ...] = ()  # texts that fill the replay stores before the first step

    def fingerprint(self) -> str:
        """Changes if and only if some token or label of some task does."""
        content = {
            "tokenizer": self.tokenizer.fingerprint(),
            "tasks": {
                name: {s: i.content for s, i in task.splits.items()} for name, task in sorted(self.tasks.items())
            },
        }
        if self.seeds:
            content["seeds"] = [seed.splits["train"].content for seed in self.seeds]
        return digest(content)

    def describe(self) -> dict[str, Any]:
        """A description of the data for the run folder, without the text."""
        content = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint(),
            "vocab_size": self.tokenizer.vocab_size,
            "tasks": {name: task.describe() for name, task in self.tasks.items()},
            "overlap": self.overlap,
        }
        if self.seeds:
            content["seeds"] = [{**seed.splits["train"].describe(), "source": seed.source} for seed in self.seeds]
        return content


def text_hashes(described: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    """The checksums of tokens and labels, by split, of a task in a data.json or a manifest."""
    return {split: (info["sha256"], info.get("labels_sha256")) for split, info in described["splits"].items()}


def file_checksums(splits: Mapping[str, SplitInfo]) -> dict[str, str]:
    """The checksums of a packed task by file name."""
    tokens = {f"{split}.tokens": info.sha256 for split, info in splits.items()}
    labels = {f"{s}.labels": info.labels_sha256 for s, info in splits.items() if info.labels_sha256 is not None}
    return tokens | {f"{split}.documents": info.documents_sha256 for split, info in splits.items()} | labels


def open_task(folder: Path, key: str) -> PreparedTask | None:
    """The packed task in a folder of the cache. None if it is missing or damaged."""
    path = folder / "manifest.json"
    if not path.is_file():  # reading a pipe of this name would block
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        checksum = manifest.pop("checksum")
        if manifest["key"] != key or checksum != digest(manifest):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    splits = {split: SplitInfo(**info) for split, info in manifest["splits"].items()}
    if not is_whole(folder, file_checksums(splits)):
        return None
    return PreparedTask(
        manifest["name"], folder, manifest["dtype"], splits, manifest["source"], tuple(manifest["messages"])
    )
