"""The text on which a continued run is judged: held-out documents of earlier tasks that the child does not read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.runs.folder import Warn
from trc2.runs.lineage import Lineage
from trc2.runs.schedule import TaskSchedule
from trc2.stream.cache import expanded
from trc2.stream.overlap import shared_by_document
from trc2.stream.packed import PreparedStream, PreparedTask

MIN_DOCUMENTS = 2  # of one document there is no interval
# A document with more of its 13-grams in what the child reads is taken for a copy and not judged. Quotes, licences and
# templates share a few 13-grams with much text that the child does not know. One changed token breaks 13 of them, so a
# copy is still found if it was changed less often than once in 26 tokens.
MAX_SHARED = 0.5


@dataclass(frozen=True)
class HeldOut:
    """An earlier task: the split it is judged on, and which of its documents are judged."""

    task: PreparedTask
    split: str
    is_judged: NDArray[np.bool_]

    @property
    def documents(self) -> int:
        return int(self.is_judged.sum())

    @property
    def chats(self) -> int:
        """How many of the judged documents are conversations, of which only the answers are judged."""
        info = self.task.splits[self.split]
        is_partly = info.counted is not None and info.counted < info.tokens  # not with loss_on=all
        return int((self.task.is_chat(self.split) & self.is_judged).sum()) if is_partly else 0

    @property
    def excluded(self) -> int:
        return len(self.is_judged) - self.documents


def known_before(config: RunConfig, lineage: Lineage) -> list[str]:
    """The tasks that the parent knew: trained by the parent run, or all that are not new if the log starts over."""
    assert config.stream is not None
    if lineage.is_run and not lineage.starts_over:
        spans = TaskSchedule.of_run(config).spans
        return [*lineage.kept, *(span.task for span in spans if span.end <= lineage.step)]
    return [task.name for task in config.stream.tasks if task.name not in lineage.tasks]


def held_out_split(task: PreparedTask, wanted: str = "test") -> str:
    """The wanted split, or validation if the test split is missing.

    Neither training nor the controller reads validation text. With --stop-at its scores choose the step at which the
    training ends. One document is too few for an interval, so a test split of one document is replaced by validation
    too, if that has more documents.
    """
    test, validation = task.splits["test"], task.splits["validation"]
    is_enough = test.documents >= MIN_DOCUMENTS or test.documents >= validation.documents
    return "test" if wanted == "test" and test.tokens > 1 and is_enough else "validation"


def held_out(config: RunConfig, lineage: Lineage, prepared: PreparedStream, wanted: str = "test") -> dict[str, HeldOut]:
    """The text that decides, by earlier task, without documents that were trained on after it or are replayed.

    What was trained on before a task is the same for parent and child. What came after it is in their replay stores.
    """
    assert config.stream is not None
    spans = TaskSchedule.of_run(config).spans
    ends = {span.task: span.end for span in spans}
    texts = {}
    for name in known_before(config, lineage):
        read = [prepared.tasks[span.task] for span in spans if span.start >= ends.get(name, 0)] + list(prepared.seeds)
        task = prepared.tasks[name]
        split = held_out_split(task, wanted)
        shared = shared_by_document(task, split, read, expanded(config.stream.cache) / "overlap", lambda: None)
        texts[name] = HeldOut(task, split, shared <= MAX_SHARED)
    return texts


def check_held_out(config: RunConfig, lineage: Lineage, prepared: PreparedStream, warn: Warn) -> None:
    """Warn about documents that are not judged, and reject a limit that cannot be met, before training."""
    for name, text in held_out(config, lineage, prepared).items():
        count = text.documents + text.excluded
        if text.excluded:
            warn(
                f"{text.excluded} of {count} documents of {name}/{text.split} also occur in what is trained on or "
                "replayed: they are not judged."
            )
        if lineage.limit is None or text.documents >= MIN_DOCUMENTS:
            continue
        if text.excluded:
            advice = "give text that is neither trained on nor replayed"
        elif lineage.is_run:
            advice = "leave --max-forgetting out, or go on from its export with more text by --keep"
        else:
            advice = "give more documents, for example one file each"
        raise UserError(
            f"{name}/{text.split} leaves {text.documents} of {count} documents to judge, but an interval takes at "
            f"least {MIN_DOCUMENTS}, so --max-forgetting {lineage.limit:g} could not be kept: {advice}."
        )
