"""What one model gained and lost against another: both scored on the same held-out documents, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trc2.config import StreamConfig, TaskConfig
from trc2.continuing.acceptance import Losses, document_losses
from trc2.continuing.earlier import Kept, read_again, read_rows, row_of
from trc2.continuing.heldout import HeldOut
from trc2.errors import UserError
from trc2.metrics.paired import CONFIDENCE, Interval, paired_rise
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.target import Target, find_target
from trc2.stream.packed import PreparedTask
from trc2.stream.prepare import prepare_task
from trc2.stream.sources import source_of
from trc2.stream.texts import keep_texts
from trc2.stream.tokenizer import Tokenizer
from trc2.system.files import finite
from trc2.system.precision import choose_device
from trc2.versions.find import find_version, model_folder

SCHEMA = 1
Learner = Literal["both", "first", "second"]
LEARNERS: dict[Learner, str] = {
    "both": "known to both",
    "first": "held out by {first} only",
    "second": "held out by {second} only",
}


@dataclass(frozen=True)
class TextDifference:
    """The rise of the perplexity of a task's documents from the first model to the second."""

    task: str
    learned_by: Learner
    documents: int
    tokens: int
    before: float
    after: float
    rise: Interval

    @property
    def word(self) -> str:
        """Whether the second model gained or lost. Neither if the interval contains no change."""
        if self.rise.low > 0:
            return "lost"
        return "gained" if self.rise.high < 0 else "unchanged"

    def describe(self) -> dict[str, Any]:
        numbers = {"before": self.before, "after": self.after, "rise": self.rise.value, "low": self.rise.low}
        numbers["high"] = self.rise.high
        names = ("task", "learned_by", "documents", "tokens")
        content = {name: getattr(self, name) for name in names}
        return {**content, **{name: finite(value) for name, value in numbers.items()}, "change": self.word}


@dataclass(frozen=True)
class Difference:
    """All texts on which two models were compared."""

    first: str
    second: str
    texts: tuple[TextDifference, ...]

    def describe(self) -> dict[str, Any]:
        content = {"schema": SCHEMA, "first": self.first, "second": self.second, "confidence": CONFIDENCE}
        return {**content, "texts": [text.describe() for text in self.texts]}

    def lines(self) -> list[str]:
        """A sentence for each text."""
        return [self._line(text) for text in self.texts]

    def _line(self, text: TextDifference) -> str:
        which = LEARNERS[text.learned_by].format(first=self.first, second=self.second)
        rise, low, high = (f"{value:+.1%}" for value in (text.rise.value, text.rise.low, text.rise.high))
        numbers = f"perplexity {text.before:.4g} → {text.after:.4g}, {rise} ({low} … {high})"
        place = f"on {text.documents} documents of {text.task} ({which})"
        if text.word == "unchanged":
            return f"{self.second} is not surely better or worse {place}: {numbers}."
        return f"{self.second} {text.word} {place}: {numbers}."


def compare(first: Path, second: Path, *, warn: Warn = lambda message: None) -> Difference:
    """Compare two versions, runs or saved models on the held-out documents of both.

    Documents that only one of them knows are compared apart, so that a gain on new text does not hide a loss on old.
    """
    texts = _grouped(_documents(first), _documents(second))
    if not texts:
        raise UserError(f"Neither {first} nor {second} has held-out documents: compare versions, or runs of trc2.")
    targets = [find_target(str(model_folder(path))) for path in (first, second)]
    prepared: dict[tuple[str, Learner], HeldOut] = {}
    losses: list[dict[tuple[str, Learner], Losses]] = []
    fingerprint = None
    length = min(target.config.train.sequence_length for target in targets)
    device = choose_device("auto")
    for target in targets:  # one model after the other: two may not fit into memory
        model, tokenizer = target.trained_model(warn)
        if fingerprint not in (None, tokenizer.fingerprint()):
            raise UserError(f"{first} and {second} have different tokenizers, so their perplexities differ in meaning.")
        if fingerprint is None:
            fingerprint = tokenizer.fingerprint()
            prepared = {key: _prepare(key[0], documents, tokenizer, target) for key, documents in texts.items()}
        config = target.config.replace(train={**target.config.train.model_dump(), "sequence_length": length})
        model.to(device)
        losses.append({key: document_losses(model, text, config, device) for key, text in prepared.items()})
        del model
    found = []
    for key in prepared:
        (before, tokens), (after, _) = losses[0][key], losses[1][key]
        rise = paired_rise(before, after, tokens, np.random.default_rng(0))
        total = max(1, int(tokens.sum()))
        old, new = (float(np.exp(values.sum() / total)) for values in (before, after))
        found.append(TextDifference(key[0], key[1], len(tokens), int(tokens.sum()), old, new, rise))
    return Difference(_shown(first), _shown(second), tuple(found))


def _shown(path: Path) -> str:
    version = find_version(path)
    return path.name or str(path) if version is None else version.name


def _documents(path: Path) -> dict[str, list[Kept]]:
    """The held-out documents of a version or run by task. A saved model has none."""
    version, run = find_version(path), RunFolder(path)
    if version is not None:
        return {name: read_rows(file) for name, file in version.held_out.items()}
    if not run.is_run:
        return {}
    if run.held_out.is_dir():
        return {file.stem: read_rows(file) for file in sorted(run.held_out.glob("*.jsonl"))}
    return read_again(run)


def _grouped(first: dict[str, list[Kept]], second: dict[str, list[Kept]]) -> dict[tuple[str, Learner], Sequence[Kept]]:
    """Documents by task and by who knows them, without groups of one document, which give no interval."""
    groups: dict[tuple[str, Learner], Sequence[Kept]] = {}
    for task in dict.fromkeys([*first, *second]):
        ours, theirs = first.get(task, []), second.get(task, [])
        parts: dict[Learner, list[Kept]] = {
            "both": [text for text in ours if text in set(theirs)],
            "first": [text for text in ours if text not in set(theirs)],
            "second": [text for text in theirs if text not in set(ours)],
        }
        groups |= {(task, who): texts for who, texts in parts.items() if len(texts) > 1}
    return groups


def _prepare(name: str, documents: Sequence[Kept], tokenizer: Tokenizer, target: Target) -> HeldOut:
    stream = target.config.stream or StreamConfig(tasks=(TaskConfig(name=name, builtin="prose"),))
    folder = keep_texts(name, map(row_of, documents), stream.cache)
    task = TaskConfig(name=name, folder=str(folder / "train.jsonl"), holdout=1.0)
    packed: PreparedTask = prepare_task(task, source_of(task, stream), tokenizer, stream.cache.expanduser())
    return HeldOut(packed, "validation", np.ones(packed.splits["validation"].documents, dtype=np.bool_))
