"""Whether a continued run may take its parent's place: per task, on text that neither training nor controller saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trc2.artifact import CONFIG_FILE
from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, RunConfig, TaskConfig
from trc2.errors import UserError
from trc2.files import write_atomically
from trc2.metrics.exam import Score, falls
from trc2.metrics.rise import CONFIDENCE, Interval, paired_rise
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.plan import Plan
from trc2.runs.target import find_target
from trc2.stream.batches import SplitWindows
from trc2.stream.prepare import PreparedTask, prepare_stream
from trc2.stream.tokenizer import Tokenizer
from trc2.training.evaluate import evaluation_mode
from trc2.training.examine import examine
from trc2.training.precision import choose_device
from trc2.training.resume import check_data

GATE_FILE = "gate.json"
SCHEMA = 1


@dataclass(frozen=True)
class TaskVerdict:
    """How much the perplexity of a past task rose against the parent, on which text, and whether that is within.

    For a task of the lm-evaluation-harness `measure` is another one, the rise is what it lost in its own unit, and the
    split is the task's own business.
    """

    task: str
    split: str
    documents: int
    tokens: int
    rise: Interval
    limit: float | None
    measure: str = "perplexity"

    @property
    def passed(self) -> bool:
        """Only if even the upper bound is within the limit; NaN is within none."""
        return self.limit is None or self.rise.high <= self.limit

    @property
    def text(self) -> str:
        return f"{self.documents} documents of {self.task}{self.split and '/'}{self.split}"

    @property
    def word(self) -> str:
        if self.passed:
            return "within"
        return "above" if self.rise.low > (self.limit or 0.0) else "not sure"

    def describe(self) -> dict[str, Any]:
        numbers = {"rise": self.rise.value, "low": self.rise.low, "high": self.rise.high}
        shown = {name: number_or_word(value) for name, value in numbers.items()}
        counted = {"measure": self.measure, "split": self.split, "documents": self.documents, "tokens": self.tokens}
        return {**shown, **counted, "passed": self.passed, "verdict": self.word}


@dataclass(frozen=True)
class Foretold:
    """What a rehearsal had said of this child: with this share of replay, no task would rise by more."""

    share: float
    predicted: float


@dataclass(frozen=True)
class Verdict:
    """All past tasks; the gate opens if every one is within the limit."""

    parent: str
    child: str
    limit: float | None
    tasks: tuple[TaskVerdict, ...]
    foretold: Foretold | None = None

    @property
    def passed(self) -> bool:
        """Where there is a limit, nothing that could be looked at is no proof that it was kept."""
        return all(task.passed for task in self.tasks) and (bool(self.tasks) or self.limit is None)

    @property
    def doubt(self) -> float:
        """How far the upper end of an interval lies above the largest rise; 0 if nothing was looked at."""
        ends = [task.rise.high for task in self.tasks if task.measure == "perplexity"]
        return float(np.max(ends)) - self.worst if ends else 0.0

    @property
    def worst(self) -> float:
        """The largest rise of a perplexity; NaN if there is one, or if nothing was looked at."""
        rises = [task.rise.value for task in self.tasks if task.measure == "perplexity"]
        return float(np.max(rises)) if rises else float("nan")

    def describe(self) -> dict[str, Any]:
        tasks = {task.task: task.describe() for task in self.tasks}
        known = {"parent": self.parent, "child": self.child, "limit": self.limit, "confidence": CONFIDENCE}
        found: dict[str, Any] = {"schema": SCHEMA, **known, "passed": self.passed, "tasks": tasks}
        if self.foretold is not None:
            found["rehearsal"] = {**asdict(self.foretold), "happened": number_or_word(self.worst)}
        return found


def number_or_word(value: float) -> float | str:
    """JSON has no NaN or infinity: they are words there."""
    return value if np.isfinite(value) else str(value)


def check_gate(parent: Path, keep: Sequence[TaskConfig], limit: float | None) -> None:
    """Refuse a limit on the forgetting of nobody knows what, before anything is trained."""
    if limit is not None and not np.isfinite(limit):
        raise UserError(f"--max-forgetting {limit} is no limit: give a number such as 0.05.")
    if limit is not None and not keep and not RunFolder(parent).is_run and (parent / CONFIG_FILE).is_file():
        raise UserError(
            f"{parent} is a saved model, which does not say what it learnt, so --max-forgetting {limit} has nothing to "
            "look at: name text it should go on knowing by --keep NAME=FOLDER."
        )


def judge(
    parent: Path,
    child: Path,
    limit: float | None,
    warn: Warn,
    foretold: Foretold | None = None,
    *,
    split: Literal["test", "validation"] = "test",
) -> Verdict:
    """Score parent and child document by document, and write what was found into the child's folder."""
    new = RunFolder(child)
    config = new.config()
    assert config.stream is not None
    prepared = prepare_stream(config.stream, tokenizer=new.tokenizer(), known=new.data()["tasks"])
    check_data(new, prepared)
    tasks = {name: prepared.tasks[name] for name in known_before(new)}
    device = choose_device("auto")
    before, after = Findings(), Findings()
    if tasks or config.eval.lm_tasks:  # one model after the other: two may not fit
        before = _look(find_target(str(parent)).model(warn), tasks, split, prepared.tokenizer, config, device)
        after = _look(new.model(warn)[0], tasks, split, prepared.tokenizer, config, device)
    verdicts = []
    for name, task in tasks.items():
        (old_losses, tokens), (new_losses, _) = before.losses[name], after.losses[name]
        rise = paired_rise(old_losses, new_losses, tokens, np.random.default_rng(config.train.seed))
        verdicts.append(TaskVerdict(name, held_out_split(task, split), len(tokens), int(tokens.sum()), rise, limit))
    for score, fall in falls(before.exam, after.exam, np.random.default_rng(config.train.seed)):
        verdicts.append(TaskVerdict(score.path, "", len(score.documents), 0, fall, limit, score.metric))
    verdict = Verdict(str(parent), str(child), limit, tuple(verdicts), foretold)
    write_atomically(child / GATE_FILE, json.dumps(verdict.describe(), indent=2).encode())
    return verdict


Losses: TypeAlias = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Findings:
    """One model's losses per document of every task, and its scores of `eval.lm_tasks`."""

    losses: dict[str, Losses] = field(default_factory=dict)
    exam: list[Score] = field(default_factory=list)


def _look(
    model: Backbone, tasks: dict[str, PreparedTask], split: str, tokenizer: Tokenizer, config: RunConfig,
    device: torch.device,
) -> Findings:  # fmt: skip
    model.to(device)
    losses = {name: document_losses(model, task, config, device, split) for name, task in tasks.items()}
    return Findings(losses, examine(model, tokenizer, config.eval))


def known_before(child: RunFolder) -> list[str]:
    """The tasks a child's parent knew: those a run had trained, or those named beside a saved model.

    Without a parent, all but the last.
    """
    config, ancestry = child.config(), child.ancestry()
    assert config.stream is not None
    plan = Plan.of_run(config)
    if ancestry is None:
        return plan.past(plan.total_steps)
    if ancestry.is_run:
        return [stretch.task for stretch in plan.stretches if stretch.end <= ancestry.step]
    return [task.name for task in config.stream.tasks if task.name not in ancestry.tasks]


def held_out_split(task: PreparedTask, wanted: str = "test") -> str:
    """The split that is wanted; validation, which neither training nor the controller reads either, without a test."""
    return "test" if wanted == "test" and task.splits["test"].tokens > 1 else "validation"


def document_losses(
    model: Backbone, task: PreparedTask, config: RunConfig, device: torch.device, wanted: str = "test"
) -> Losses:
    """Σ −log p and the number of predicted tokens of every document of the held-out split."""
    split = held_out_split(task, wanted)
    count = task.splits[split].documents
    losses, tokens = np.zeros(count), np.zeros(count, dtype=np.int64)
    windows, rows = SplitWindows(task, config.train.sequence_length), EvalConfig().batch_size
    with evaluation_mode(model):
        for batch in windows.eval_batches(split, rows):
            nll = model.predict(batch.x.to(device), batch.y.to(device)).nll.double().cpu().numpy()
            assert batch.origin.document is not None
            places = batch.origin.document.numpy()
            np.add.at(losses, places, nll)
            np.add.at(tokens, places, (batch.y != IGNORE_INDEX).numpy())
    return losses, tokens
