"""On which text a continued run is judged: held-out documents of what its parent knew that the child does not read."""

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
MAX_SHARED = 0.5  # a document with more of its 13-grams in what the child reads is a copy, perhaps edited: not judged


@dataclass(frozen=True)
class HeldOut:
    """A task that the parent knew: the split it is judged on, and which of its documents are judged."""

    task: PreparedTask
    split: str
    is_judged: NDArray[np.bool_]

    @property
    def documents(self) -> int:
        return int(self.is_judged.sum())

    @property
    def excluded(self) -> int:
        return len(self.is_judged) - self.documents


def known_before(config: RunConfig, lineage: Lineage | None) -> list[str]:
    """The tasks a child's parent knew: those a run had trained, and those named by --keep beside a saved model.

    Without a parent, all but the last.
    """
    assert config.stream is not None
    schedule = TaskSchedule.of_run(config)
    if lineage is None:
        return schedule.past(schedule.total_steps)
    if lineage.is_run:
        return [*lineage.kept, *(span.task for span in schedule.spans if span.end <= lineage.step)]
    return [task.name for task in config.stream.tasks if task.name not in lineage.tasks]


def held_out_split(task: PreparedTask, wanted: str = "test") -> str:
    """The split that is wanted; validation, which neither training nor the controller reads either, without a test.

    A test split of a single document allows no interval, so validation is taken then too, if it has more.
    """
    test, validation = task.splits["test"], task.splits["validation"]
    is_enough = test.documents >= MIN_DOCUMENTS or test.documents >= validation.documents
    return "test" if wanted == "test" and test.tokens > 1 and is_enough else "validation"


def held_out(
    config: RunConfig, lineage: Lineage | None, prepared: PreparedStream, wanted: str = "test"
) -> dict[str, HeldOut]:
    """By task that the parent knew, the text that decides: without documents that the child trains on or replays.

    What the parent was trained on itself is not looked at: it is the same for both.
    """
    assert config.stream is not None
    new = () if lineage is None else lineage.tasks
    read = [prepared.tasks[name] for name in new] + list(prepared.seeds)
    found = {}
    for name in known_before(config, lineage):
        task = prepared.tasks[name]
        split = held_out_split(task, wanted)
        shared = np.zeros(task.splits[split].documents)
        if read:
            cache = expanded(config.stream.cache) / "overlap"
            shared = shared_by_document(task, split, read, cache, lambda: None)
        found[name] = HeldOut(task, split, shared <= MAX_SHARED)
    return found


def check_held_out(config: RunConfig, lineage: Lineage, prepared: PreparedStream, warn: Warn) -> None:
    """Say which documents are not judged, and refuse a limit that nothing could keep, before anything is trained."""
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
            what = "give text that is neither trained on nor replayed"
        elif lineage.is_run:
            what = "leave --max-forgetting out, or go on from its export with more text by --keep"
        else:
            what = "give more documents, for example one file each"
        raise UserError(
            f"{name}/{text.split} leaves {text.documents} of {count} documents to judge, but an interval takes at "
            f"least {MIN_DOCUMENTS}, so --max-forgetting {lineage.limit:g} could not be kept: {what}."
        )
