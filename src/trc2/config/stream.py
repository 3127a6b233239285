"""The stream of tasks: where their text comes from and how long each is trained."""

from __future__ import annotations

import codecs
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from trc2.config.section import Count, Section, shown
from trc2.errors import did_you_mean

Builtin = Literal["prose", "code", "arithmetic"]


MAX_DOCUMENT_BYTES = 2**30  # a document is read and encoded whole
MAX_VOCAB_SIZE = 2**20  # the trainer makes room for all of it before it looks at any text


def _stays_below(pattern: str) -> str:
    """Refuse a pattern that would read from elsewhere than the task's folder."""
    path = PurePath(pattern)
    if not pattern.strip():
        raise ValueError("<path> is empty: give a file name, a pattern such as '*.jsonl', or a stem such as train.")
    if path.anchor or ".." in path.parts:
        raise ValueError(
            f"<path>={pattern!r} leaves the task's folder: give a file name, a pattern such as '*.jsonl', or a stem "
            "such as train, below it."
        )
    return pattern


SplitPattern = Annotated[str, Field(max_length=1000), AfterValidator(_stays_below)]


class SplitNames(Section):
    """How the source calls its splits. For files, patterns below the task's folder."""

    train: SplitPattern = Field("train", description="train text")
    validation: SplitPattern | None = Field(
        "validation", description="validation text. None means that it is held out of the train text."
    )
    test: SplitPattern | None = Field(
        "test", description="test text. None means that the task does not have a test split."
    )


class TaskConfig(Section):
    """One task. Its text is a built-in corpus, files below the data root, or a Hugging Face dataset.

    With both `folder` and `dataset`, the folder is used when `stream.data_root` is set and the dataset otherwise, so
    that one recipe serves machines with and without a network.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=100)] = Field(
        description="name of the task in metrics, caches and shuffles"
    )
    steps: Count = Field(100, description="optimizer steps spent on this task")
    builtin: Builtin | None = Field(None, description="a corpus that needs no files")
    folder: str | None = Field(
        None, description="a folder of text, or one file, below the data root: .txt, .md, .jsonl, .parquet, source code"
    )
    dataset: str | None = Field(None, description="a Hugging Face dataset id", min_length=1)
    subset: str | None = Field(None, description="the dataset's configuration name")
    streaming: bool = Field(False, description="read the dataset without downloading all of it")
    splits: SplitNames = Field(SplitNames(), description="how the source calls its splits")
    format: str = Field("text", description="text, gsm8k, wikitext, or a template such as '{title}\\n{text}'")
    loss_on: Literal["answers", "all"] = Field(
        "answers",
        description="on which tokens of chat rows the loss is taken: on the answers, or on all tokens. In documents "
        "it is always taken on all tokens.",
    )
    encoding: str = Field("utf-8", description="encoding of plain text and .jsonl files, e.g. latin-1 or cp1252")
    holdout: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.05,
        description="share of train documents that become validation text, at least one document. It applies to "
        "a task without a validation split. 1 holds out all documents, for text that is measured and "
        "not trained.",
    )
    max_document_bytes: Annotated[int, Field(ge=1, le=MAX_DOCUMENT_BYTES)] = Field(
        1_000_000, description="longer documents are skipped and counted"
    )
    max_train_bytes: Count | None = Field(None, description="read no more train text than this")
    max_eval_bytes: Count | None = Field(None, description="read no more validation or test text than this")
    license: str | None = Field(None, description="license of the text. It is recorded in data.json.")

    @field_validator("encoding")
    @classmethod
    def _keeps_ascii(cls, encoding: str) -> str:
        """Lines are found by their end before they are decoded, so ASCII must be as it is in UTF-8."""
        ascii_bytes = bytes(range(128))
        try:
            if ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii"):
                return codecs.lookup(encoding).name
        except (LookupError, UnicodeError, ValueError):
            pass
        raise ValueError(
            f"encoding={shown(encoding)} is not an encoding that contains ASCII: use utf-8, latin-1, cp1252 or "
            "the like, or convert the files to UTF-8."
        )

    @model_validator(mode="after")
    def _has_one_source(self) -> TaskConfig:
        given = [name for name in ("builtin", "folder", "dataset") if getattr(self, name) is not None]
        if not given or ("builtin" in given and len(given) > 1):
            sources = " and ".join(given) or "no source"
            raise ValueError(
                f"task '{self.name}' has {sources}: give builtin, or folder, or dataset (or the last two)."
            )
        return self

    def reading(self) -> dict[str, Any]:
        """What decides which text is read, and which of it is learned.

        `folder` is left out, because its files are identified by their names and content: every week has the same old
        text in another folder.
        """
        return self.model_dump(mode="json", exclude={"steps", "license", "folder"})


class TokenizerConfig(Section):
    """A saved tokenizer by name or folder, or a byte-level BPE trained once on the stream's train splits."""

    path: str | None = Field(
        None, description="a Hugging Face name, or a folder (below the data root if not found here)"
    )
    vocab_size: Annotated[int, Field(ge=257, le=MAX_VOCAB_SIZE)] = Field(
        4096, description="size of the trained BPE, 256 bytes included"
    )
    max_train_bytes: Count = Field(20_000_000, description="text per task the BPE is trained on")
    begin_of_text: bool = Field(
        False,
        description="begin every document with the tokenizer's own first token, if it has one. With model=hf "
        "this is always true.",
    )
    special_in_text: bool = Field(
        False,
        description="read special tokens such as <|endoftext|> inside documents as control tokens. If false, "
        "they are read as text.",
    )


class StreamConfig(Section):
    """Tasks, and in which order they are learned. The order changes neither tokenizer nor packed text."""

    tasks: tuple[TaskConfig, ...] = Field(description="the tasks, in the order they are learned")
    mode: Literal["sequential", "joint"] = Field(
        "sequential", description="joint: one shuffled mixture of all tasks, with as many tokens of each"
    )
    order: tuple[str, ...] | None = Field(
        None, description="the names of all tasks in the order they are learned. None means the order of the list."
    )
    only: tuple[str, ...] | None = Field(
        None, description="train only these tasks. The other tasks are still measured."
    )
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="a saved tokenizer, or how one is trained")
    data_root: Path | None = Field(
        None, description="the folder that holds the task folders. None means the current folder."
    )
    cache: Path = Field(Path("~/.cache/trc2"), description="where packed tokens are kept")
    replay_prefill_files: tuple[str, ...] = Field(
        (),
        description="files or folders of general text that fill the replay stores before the first step, as if "
        "they had been trained on. The files are .jsonl, .txt or .parquet. `trc2 dream` makes such a "
        "file from the model itself.",
    )
    replay_prefill_tasks: tuple[str, ...] = Field(
        (),
        description="tasks that are measured and not trained. Their train text also fills the replay stores "
        "before the first step.",
    )
    control_batches: Count = Field(5, description="batches of train text set aside per task for the replay controller")

    @field_validator("order", mode="before")
    @classmethod
    def _one_order(cls, order: Any) -> Any:
        if order == ["all"]:
            raise ValueError("order=all is many runs: give it to `trc2 sweep`, or name one order here.")
        if order is None or (isinstance(order, list | tuple) and all(isinstance(name, str) for name in order)):
            return order
        raise ValueError(f"order={shown(order)} is not a list of names: write it as [first, second, …].")

    @model_validator(mode="after")
    def _names_differ(self) -> StreamConfig:
        names = [task.name for task in self.tasks]
        if not names:
            raise ValueError("tasks is empty: give at least one task.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task '{twice[0]}' appears twice: give every task its own name.")
        for name in self.only or ():
            if name not in names:
                raise ValueError(f"only names '{name}', which is not a task: {did_you_mean(name, names)}")
        for name in self.replay_prefill_tasks:
            if name not in names or self.only is None or name in self.only:
                raise ValueError(
                    f"replay_prefill_tasks names '{name}', which is not a task that is only measured: leave it out, "
                    "or name the trained tasks by only."
                )
        if self.only == ():
            raise ValueError("only is empty: name at least one task, or leave it out.")
        if self.order is not None and sorted(self.order) != sorted(names):
            raise ValueError(
                f"order=[{', '.join(self.order)}] is not an order of the tasks: name {', '.join(names)} once each."
            )
        return self

    @property
    def trained(self) -> tuple[TaskConfig, ...]:
        """The tasks that are trained, in the order they are learned."""
        named = {task.name: task for task in self.tasks}
        return tuple(named[name] for name in self.order or named if self.only is None or name in self.only)
