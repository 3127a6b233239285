"""The acceptance check: whether a continued run may replace its parent, decided per task on held-out text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trc2.backbones.saved import is_saved_model, load_model
from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, RunConfig, TaskConfig
from trc2.continuing.drift import Drift, drift_from, measure_drift, texts_to_compare
from trc2.continuing.fork import parent_weights
from trc2.continuing.heldout import HeldOut, held_out
from trc2.continuing.interpolation import GRID, alpha_of, settle
from trc2.errors import UserError, brief
from trc2.evaluation.tasks import evaluation_mode, score_lm_tasks
from trc2.metrics.lm_eval import Score, falls
from trc2.metrics.paired import CONFIDENCE, Interval, paired_rise
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.checkpoint import Checkpoint, DamagedCheckpoint, put_back_replaced
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lineage import Lineage, Prediction
from trc2.runs.stopping import Stop, stop_from
from trc2.stream.batches import SplitWindows
from trc2.stream.packed import PreparedStream
from trc2.stream.tokenizer import Tokenizer
from trc2.system.failpoints import failpoint
from trc2.system.files import finite, reading, write_atomically
from trc2.system.precision import choose_device

ACCEPTANCE_FILE = "acceptance.json"
SCHEMA = 2
REFUSED = 3  # the exit code of a command whose acceptance check refused the child


@dataclass(frozen=True)
class TaskVerdict:
    """The rise of the perplexity of a past task since the parent, the text it was measured on, and the limit.

    For a task of the lm-evaluation-harness `measure` is its metric, the rise is the loss in its unit, and the split
    is empty.
    """

    task: str
    split: str
    documents: int
    tokens: int
    rise: Interval
    limit: float | None
    measure: str = "perplexity"
    excluded: int = 0  # documents that the child trained on or replayed
    chats: int = 0  # documents that are conversations, of which only the answers are judged

    @property
    def passed(self) -> bool:
        """Whether the upper bound is within the limit. NaN is not within any limit."""
        return self.limit is None or self.rise.high <= self.limit

    @property
    def text(self) -> str:
        without = f" ({self.excluded} left out as trained on)" if self.excluded else ""
        which = "" if self.chats == self.documents else f" of {self.chats}"
        answers = f", only the answers{which}" if self.chats else ""
        measure = "" if self.measure == "perplexity" else f": {self.measure}"
        return f"{self.documents} documents of {self.task}{self.split and '/'}{self.split}{answers}{without}{measure}"

    @property
    def word(self) -> str:
        if self.limit is None or self.passed:
            return "within"
        if self.rise.value > self.limit:
            return "above" if self.rise.low > self.limit else "above (not certain)"
        return "not sure"

    def describe(self) -> dict[str, Any]:
        rise = {"rise": finite(self.rise.value), "low": finite(self.rise.low), "high": finite(self.rise.high)}
        names = ("measure", "split", "documents", "tokens", "excluded", "passed")
        chats = {"chats": self.chats} if self.chats else {}
        return {**rise, **{name: getattr(self, name) for name in names}, **chats, "verdict": self.word}


@dataclass(frozen=True)
class Verdict:
    """The child is accepted if every past task is within the limit. The steps are those that were compared."""

    parent: str
    child: str
    limit: float | None
    tasks: tuple[TaskVerdict, ...]
    prediction: Prediction | None = None
    parent_step: int | None = None  # None: a saved model has no steps
    child_step: int | None = None
    stop: Stop | None = None  # of a child whose training stopped early
    drifts: tuple[Drift, ...] = ()
    max_drift: float | None = None
    not_measured: str = ""  # a sentence
    interpolation: float | None = None  # α, if the child's weights were interpolated with the parent's

    @property
    def passed(self) -> bool:
        """With a limit, the check fails if nothing could be compared, or if no evaluation was within --stop-at."""
        has_good_end = self.stop is None or self.stop.is_within
        has_kept = all(task.passed for task in self.tasks) and (bool(self.tasks) or self.limit is None)
        has_stayed = all(drift.passed for drift in self.drifts) and (bool(self.drifts) or self.max_drift is None)
        return has_good_end and has_kept and has_stayed

    @property
    def failing(self) -> str:
        """What is not within its limit, as text."""
        reasons = [f"{task.task} is {task.word}" for task in self.tasks if not task.passed]
        if self.stop is not None and not self.stop.is_within:
            reasons.append(f"no evaluation was within --stop-at {self.stop.limit:.1%}")
        reasons += [
            f"drift on {d.task} is {d.nats.value:.3g} nats (at most {d.nats.high:.3g})"
            for d in self.drifts
            if not d.passed
        ]
        return ", ".join(reasons) or "nothing could be compared"

    @property
    def limits(self) -> str:
        """The limits of the check, as the options that set them."""
        given = [] if self.limit is None else [f"--max-forgetting {self.limit:.1%}"]
        return " and ".join([*given, *([] if self.max_drift is None else [f"--max-drift {self.max_drift:g}"])])

    @property
    def interval_width(self) -> float:
        """The distance from the largest rise to the largest upper bound. 0 if no text was compared."""
        ends = [task.rise.high for task in self.tasks if task.measure == "perplexity"]
        return float(np.max(ends)) - self.worst if ends else 0.0

    @property
    def worst(self) -> float:
        """The largest rise of a perplexity. NaN if one of them is NaN, or if no text was compared."""
        rises = [task.rise.value for task in self.tasks if task.measure == "perplexity"]
        return float(np.max(rises)) if rises else float("nan")

    def describe(self) -> dict[str, Any]:
        names = ("parent", "parent_step", "child", "child_step", "limit")
        content = {"schema": SCHEMA, **{name: getattr(self, name) for name in names}, "confidence": CONFIDENCE}
        content |= {"passed": self.passed, "tasks": {task.task: task.describe() for task in self.tasks}}
        if self.drifts or self.max_drift is not None:
            content["max_drift"] = self.max_drift
            content["drift"] = {drift.task: drift.describe() for drift in self.drifts}
        content["not_measured"] = self.not_measured
        if self.interpolation is not None:
            content["interpolation"] = self.interpolation
        if self.stop is not None:
            content["stop"] = finite(asdict(self.stop))
        if self.prediction is not None:
            predicted, happened = finite(self.prediction.predicted), finite(self.worst)
            content["trial_runs"] = {"share": self.prediction.share, "predicted": predicted, "happened": happened}
        return content


def check_acceptance(
    parent: Path,
    keep: Sequence[TaskConfig],
    limit: float | None,
    stop_at: float | None = None,
    max_drift: float | None = None,
) -> None:
    """Reject a limit that cannot be checked, before training."""
    _check_limit(max_drift, "--max-drift")
    is_model = not RunFolder(parent).is_run and is_saved_model(parent)
    for option, value in (("--max-forgetting", limit), ("--stop-at", stop_at)):
        _check_limit(value, option)
        if value is not None and not keep and is_model:
            raise UserError(
                f"{parent} is a saved model, which does not say what it learned, so {option} {value} has nothing to "
                "look at: name text it should go on knowing by --keep NAME=FOLDER, or let it generate some by --dream."
            )


def _check_limit(limit: float | None, option: str = "--max-forgetting") -> None:
    if limit is not None and not (np.isfinite(limit) and limit >= 0):
        raise UserError(f"{option} {limit} is not a limit: give a number such as 0.05.")


# -------------------------------------------------------------------------------------------- a child and its verdict


def judge_child(
    child: Path, warn: Warn, parent: Path | None = None, limit: float | None = None, *, again: bool = False
) -> Verdict | None:
    """Judge a finished run that has a parent. None if it has none.

    The limit is the smaller of the child's own and `limit`, which defaults to that of the earlier verdict in the
    folder. The earlier verdict is returned if it is still valid, unless `again`. Without a limit and without `again`, a
    missing parent is a warning and not an error, because there is nothing to decide.
    """
    _check_limit(limit)
    folder = RunFolder(child)
    lineage, earlier = folder.lineage(), read_verdict(folder)
    if lineage is None:
        return None
    if limit is None and earlier is not None:
        limit = earlier.limit
    limit = min((one for one in (limit, lineage.limit) if one is not None), default=None)
    total = folder.schedule().total_steps
    has_same_limits = earlier is not None and (earlier.limit, earlier.max_drift) == (limit, lineage.max_drift)
    is_judged = earlier is not None and earlier.child_step == total
    if is_judged and has_same_limits and not again:
        return earlier
    try:
        where = parent or lineage.find(child)
        if lineage.interpolate is not None and not (again and is_judged):
            _interpolate(where, folder, lineage, limit, warn)
        verdict = judge(where, child, limit, warn, lineage.prediction)
    except UserError as problem:
        if limit is not None or lineage.has_limit or again:
            raise
        warn(f"{child} was not compared with its parent: {problem}")
        return Verdict(lineage.parent, str(child), None, ())
    if parent is None:  # keep the path that was given when the child was made
        verdict = replace(verdict, parent=lineage.parent)
    failpoint("verdict")
    write_atomically(child / ACCEPTANCE_FILE, json.dumps(verdict.describe(), indent=2).encode())
    failpoint("verdict written")
    return verdict


def read_verdict(folder: RunFolder) -> Verdict | None:
    """The verdict in a run's folder. None if it is missing or damaged."""
    with suppress(UserError):
        return load_verdict(folder)
    return None


def load_verdict(folder: RunFolder) -> Verdict | None:
    """The verdict in a run's folder. None if it is missing, and an error if it is damaged."""
    path = folder.path / ACCEPTANCE_FILE
    if not path.is_file():
        return None
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        limit, max_drift = _number(content["limit"]), _number(content.get("max_drift"))
        tasks = tuple(
            TaskVerdict(
                name, str(task["split"]), int(task["documents"]), int(task["tokens"]),
                Interval(float(task["rise"]), float(task["low"]), float(task["high"])), limit, str(task["measure"]),
                int(task.get("excluded", 0)), int(task.get("chats", 0)),
            )
            for name, task in content["tasks"].items()
        )  # fmt: skip
        trial = content.get("trial_runs")
        prediction = None if trial is None else Prediction(float(trial["share"]), float(trial["predicted"]))
        first, last = (_number(content.get(name)) for name in ("parent_step", "child_step"))
        steps = None if first is None else int(first), None if last is None else int(last)  # schema 1 has none
        stop = None if content.get("stop") is None else stop_from(content["stop"])
        drifts = tuple(drift_from(name, drift, max_drift) for name, drift in content.get("drift", {}).items())
        not_measured = str(content.get("not_measured", ""))
        return Verdict(
            str(content["parent"]), str(content["child"]), limit, tasks, prediction, *steps, stop, drifts, max_drift,
            not_measured, _number(content.get("interpolation")),
        )  # fmt: skip


def _number(value: Any) -> float | None:
    """A number that may be missing. Anything else is an error of the file."""
    return None if value is None else float(value)


def why_not_accepted(folder: RunFolder, step: int) -> str | None:
    """The reason why the model of this step must not replace its parent. None if it may."""
    lineage, verdict = folder.lineage(), read_verdict(folder)
    limit = None if lineage is None else lineage.limit
    if verdict is not None and verdict.child_step in (step, None) and (limit is None or verdict.limit is not None):
        if verdict.passed:
            return None
        return f"was refused by its acceptance check ({'; '.join(filter(None, (verdict.failing, verdict.limits)))})"
    if lineage is None or not lineage.has_limit:
        return None
    return f"has a limit{'' if limit is None else f' of {limit:.1%}'} on forgetting and was not judged at step {step}"


def judge(
    parent: Path,
    child: Path,
    limit: float | None,
    warn: Warn,
    prediction: Prediction | None = None,
    *,
    split: Literal["test", "validation"] = "test",
    checkpoint: Checkpoint | None = None,
) -> Verdict:
    """Score parent and child document by document.

    The parent must be, to the bit, the checkpoint or model that the child began with. `checkpoint` is judged instead of
    the child's last one.
    """
    folder = RunFolder(child)
    config, lineage = folder.config(), folder.lineage()
    assert config.stream is not None
    assert lineage is not None, "only a run with a parent is judged"
    check_parent(parent, lineage, child, config.stream.cache)
    last, prepared = checkpoint or _last_checkpoint(folder, warn), folder.prepared()
    texts = held_out(config, lineage, prepared, split)
    drifts: tuple[Drift, ...] = ()
    if split == "test" and (lineage.max_drift is not None or lineage.generated is not None or not texts):
        drifts = _drifts_of(_parent_model(parent, lineage), folder.model_of(last), lineage, prepared, config)
    before = after = ModelScores({}, [])
    if texts or config.eval.lm_tasks:  # one model after the other: two may not fit into memory
        before = _score_model(_parent_model(parent, lineage), texts, prepared.tokenizer, config)
        after = _score_model(folder.model_of(last), texts, prepared.tokenizer, config)
    verdicts = []
    for name, text in texts.items():
        (old_losses, tokens), (new_losses, _) = before.losses[name], after.losses[name]
        rise = paired_rise(old_losses, new_losses, tokens, np.random.default_rng(config.train.seed))
        counts = len(tokens), int(tokens.sum())
        verdicts.append(TaskVerdict(name, text.split, *counts, rise, limit, excluded=text.excluded, chats=text.chats))
    for score, fall in falls(before.lm_scores, after.lm_scores, np.random.default_rng(config.train.seed)):
        verdicts.append(TaskVerdict(score.path, "", len(score.documents), 0, fall, limit, score.metric))
    parent_step = lineage.step if lineage.is_run else None
    return Verdict(
        str(parent), str(child), limit, tuple(verdicts), prediction, parent_step, last.step, folder.stop(), drifts,
        lineage.max_drift, _not_measured(lineage, verdicts), alpha_of(last),
    )  # fmt: skip


def _last_checkpoint(folder: RunFolder, warn: Warn) -> Checkpoint:
    last = folder.newest_checkpoint(warn)
    if last is None or last.step != folder.schedule().total_steps:
        raise UserError(f"{folder} has not ended, so it cannot be judged: `trc2 resume {folder}` first.")
    return last


def _interpolate(parent: Path, folder: RunFolder, lineage: Lineage, limit: float | None, warn: Warn) -> None:
    """Put interpolated weights into a finished child, if it was made with --interpolate."""
    assert lineage.interpolate is not None
    config, child = folder.config(), folder.path
    assert config.stream is not None
    put_back_replaced(folder.checkpoints)
    last = _last_checkpoint(folder, warn)
    check_parent(parent, lineage, child, config.stream.cache)
    alpha = settle(
        folder, last, lineage.interpolate, lambda: _parent_model(parent, lineage),
        lambda blended: judge(parent, child, limit, warn, checkpoint=blended).passed, folder.prepared(),
    )  # fmt: skip
    if alpha is None:
        warn(f"Not even {GRID[0]:g} of the way from {parent} to {child} is accepted, so its weights stay as trained.")


def _drifts_of(
    before: Backbone, after: Backbone, lineage: Lineage, prepared: PreparedStream, config: RunConfig
) -> tuple[Drift, ...]:
    device = choose_device("auto")
    texts = texts_to_compare(lineage, prepared)
    return measure_drift(before.to(device), after.to(device), texts, config, lineage.max_drift, device)


def _not_measured(lineage: Lineage, verdicts: Sequence[TaskVerdict]) -> str:
    """One sentence on what the check did not measure."""
    texts = {verdict.task for verdict in verdicts if verdict.measure == "perplexity"}
    others = [] if lineage.generated is None else ["text that it generated itself"]
    if any(verdict.measure != "perplexity" for verdict in verdicts):
        others.append("tasks of the lm-evaluation-harness")
    if lineage.is_run:
        return "What the parent can do beyond the tasks that are listed was not measured."
    if texts - {lineage.generated}:
        return "Of what the parent had learned, only the texts that are listed were measured."
    if others:
        return f"No text that the parent had learned from was measured, only {' and '.join(others)}."
    return "No text that the parent had learned from was measured, so what it forgot is unknown."


def check_parent(parent: Path, lineage: Lineage, child: Path, cache: Path) -> None:
    """Reject a parent whose weights are not, to the bit, those the child began with."""
    step = lineage.step if lineage.is_run else None
    name = f"{parent}" if step is None else f"{parent} at step {step}"
    if RunFolder(parent).is_run != lineage.is_run:
        kind = "run" if lineage.is_run else "saved model"
        raise UserError(f"{parent} is not the {kind} from which {child} goes on: name {lineage.parent}.")
    try:
        weights = parent_weights(parent, step, cache)
    except (UserError, OSError) as problem:
        raise UserError(
            f"{name}, with which {child} began, cannot be read ({brief(problem)}): restore it from a copy."
        ) from None
    if lineage.weights is not None and weights != lineage.weights:
        raise UserError(
            f"The weights of {name} are not those with which {child} began: restore them from a copy, or name the "
            "right parent."
        )


def _parent_model(parent: Path, lineage: Lineage) -> Backbone:
    """The network of the checkpoint or model that the child continued."""
    if not lineage.is_run:
        return load_model(parent)
    run = RunFolder(parent)
    try:
        return run.model_of(run.checkpoint_of(lineage.step))
    except DamagedCheckpoint as problem:
        raise UserError(f"{parent} at step {lineage.step} is damaged ({problem}): restore it from a copy.") from None


Losses: TypeAlias = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class ModelScores:
    """One model's losses per document of every task, and its scores of `eval.lm_tasks`."""

    losses: dict[str, Losses]
    lm_scores: list[Score]


def _score_model(model: Backbone, texts: dict[str, HeldOut], tokenizer: Tokenizer, config: RunConfig) -> ModelScores:
    device = choose_device("auto")
    model.to(device)
    losses = {name: document_losses(model, text, config, device) for name, text in texts.items()}
    return ModelScores(losses, score_lm_tasks(model, tokenizer, config.eval))


def document_losses(model: Backbone, text: HeldOut, config: RunConfig, device: torch.device) -> Losses:
    """Σ −log p and the number of predicted tokens, for every document that is judged."""
    count = len(text.is_judged)
    losses, tokens = np.zeros(count), np.zeros(count, dtype=np.int64)
    windows, rows = SplitWindows(text.task, config.train.sequence_length), EvalConfig().batch_size
    with evaluation_mode(model):
        for batch in windows.eval_batches(text.split, rows):
            nll = model.predict(batch.x.to(device), batch.y.to(device)).nll.double().cpu().numpy()
            assert batch.origin.document is not None
            documents = batch.origin.document.numpy()
            np.add.at(losses, documents, nll)
            np.add.at(tokens, documents, (batch.y != IGNORE_INDEX).numpy())
    return losses[text.is_judged], tokens[text.is_judged]
