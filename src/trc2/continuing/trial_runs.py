"""Trial runs: short branches with different shares of replay predict how much a new task makes a run forget."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trc2.config import TaskConfig
from trc2.continuing.acceptance import Verdict, judge
from trc2.continuing.continue_run import continue_run, default_folder
from trc2.continuing.request import MIN_DIVIDED, ContinuationRequest, child_config, has_old_text
from trc2.errors import UserError, brief
from trc2.runs.folder import Warn
from trc2.runs.lineage import Prediction
from trc2.runs.lock import is_locked, lock_folder
from trc2.system.files import finite, reading, write_atomically

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
MIN_STEPS, PART = 5, 5  # a branch has a fifth of the steps, and at least five


@dataclass(frozen=True)
class Branch:
    """A branch with one share. `predicted` is the largest rise of a past task's perplexity after all steps of the task.

    `ceiling` adds the width of the branch's interval, because the acceptance check compares the upper bound.
    """

    share: float
    verdict: Verdict
    predicted: float

    @property
    def ceiling(self) -> float:
        return self.predicted + self.verdict.interval_width


@dataclass(frozen=True)
class TrialRuns:
    """The branches, with rising shares, up to the first one that is predicted to stay under the limit."""

    parent: str
    overrides: tuple[str, ...]
    tasks: tuple[str, ...]
    limit: float
    steps: int
    branch_steps: int
    branches: tuple[Branch, ...]
    learning_rate: float = math.nan
    has_old_text: bool = True  # without old text a share would replay the new text

    @property
    def cheapest(self) -> float | None:
        """The smallest share that is predicted to stay under the limit, if there is one."""
        return next((branch.share for branch in self.branches if branch.ceiling <= self.limit), None)

    def describe(self) -> dict[str, Any]:
        branches = []
        for b in self.branches:
            numbers = {"measured": b.verdict.worst, "predicted": b.predicted, "ceiling": b.ceiling}
            verdict = {name: value for name, value in b.verdict.describe().items() if name not in ("parent", "child")}
            branches.append({"share": b.share, **{name: finite(value) for name, value in numbers.items()}, **verdict})
        names = ("parent", "overrides", "tasks", "limit", "steps", "branch_steps")
        rest = {"learning_rate": finite(self.learning_rate), "has_old_text": self.has_old_text}
        settings = {name: getattr(self, name) for name in names} | rest
        return {"schema": 1, **settings, "cheapest": self.cheapest, "branches": branches}

    def lines(self) -> list[str]:
        """The result as text for users."""
        lines = [
            f"share {b.share:4.0%}: {b.verdict.worst:+.1%} after {self.branch_steps} steps; after {self.steps} "
            f"predicted {b.predicted:+.1%}, with its interval {b.ceiling:+.1%}"
            for b in self.branches
        ]
        if not self.has_old_text:
            lines.append(
                "There is no old text to replay, so no share was tried: name some by --keep NAME=FOLDER, with at least "
                f"{MIN_DIVIDED} documents, or by stream.replay_prefill_files."
            )
        if self.cheapest is None:
            largest = self.branches[-1].share
            return [
                *lines,
                f"No share up to {largest:.0%} stays under {self.limit:.1%}: take fewer steps, or a smaller learning "
                f"rate than {self.learning_rate:g}, for example train.learning_rate={self.learning_rate / 3:.2g}.",
            ]
        return [*lines, f"Cheapest under {self.limit:.1%}: --replay-share {self.cheapest}"]


def try_shares(
    parent: Path,
    task: TaskConfig | Sequence[TaskConfig],
    limit: float,
    shares: Sequence[float] = SHARES,
    *,
    overrides: Sequence[str] = (),
    keep: Sequence[TaskConfig] = (),
    beside: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
    warn: Warn = lambda _: None,
) -> TrialRuns:
    """Train branches from the parent's end, with rising shares, until one is predicted to stay under the limit.

    The prediction assumes that forgetting grows in proportion to the steps. Mostly it grows slower, but with a small
    learning rate it can start slowly and grow faster later, so the acceptance check of the real run decides. The
    branches are deleted. They are made `beside` the child's folder, where those of a killed command are found and
    removed. They are judged on validation text, so that the text of the acceptance check does not influence the choice
    of the share. Without old text to replay, only a share of 0 is tried.
    """
    tasks = (task,) if isinstance(task, TaskConfig) else tuple(task)
    short = [one.replace(steps=min(one.steps, max(MIN_STEPS, one.steps // PART))) for one in tasks]
    all_steps, steps = sum(one.steps for one in tasks), sum(one.steps for one in short)
    config = child_config(parent, ContinuationRequest(tasks, None, tuple(overrides), tuple(keep)), Path("trial"))
    can_replay = has_old_text(parent, config)
    branches: list[Branch] = []
    scratch = _scratch(beside or default_folder(parent, tasks))
    with lock_folder(scratch):
        for share in shares if can_replay else shares[:1]:
            watch(f"a branch of {steps} steps with {share:.0%} replay")
            child = scratch / f"share-{share}"
            shutil.rmtree(child, ignore_errors=True)
            replayed = share if config.model.replay else None
            continue_run(parent, child, short, Console(quiet=True), replayed, overrides=overrides, keep=keep)
            verdict = judge(parent, child, limit, warn, split="validation")
            rise = verdict.worst
            predicted = math.expm1(math.log1p(rise) * all_steps / steps) if rise > 0 else rise
            branches.append(Branch(share, verdict, predicted))
            if branches[-1].ceiling <= limit:
                break
    shutil.rmtree(scratch, ignore_errors=True)
    return TrialRuns(
        str(parent), tuple(overrides), tuple(one.name for one in tasks), limit, all_steps, steps, tuple(branches),
        config.train.learning_rate, can_replay,
    )  # fmt: skip


def remove_trials(child: Path) -> None:
    """Remove the branches that a killed command left behind, unless another process is using them."""
    scratch = _scratch(child)
    if scratch.is_dir() and not is_locked(scratch):
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch(child: Path) -> Path:
    return child.with_name(f".{child.name[:200]}.trial")


def save_trial_runs(trials: TrialRuns, child: Path) -> Path:
    """Write the result beside the child's folder, so that the child can be compared with it."""
    path = _results_file(child)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(trials.describe(), indent=2).encode())
    return path


def prediction(
    parent: Path,
    child: Path,
    tasks: Sequence[TaskConfig],
    share: float | None,
    overrides: Sequence[str] = (),
    warn: Warn = lambda _: None,
) -> Prediction | None:
    """The saved prediction of trial runs with the same parent, settings, tasks, steps and share, or None.

    A warning says why saved trial runs are not used: they are of other settings, or damaged.
    """
    path = _results_file(child)
    if share is None or not path.is_file():
        return None
    now: dict[str, Any] = {"parent": str(parent), "overrides": list(overrides), "tasks": [one.name for one in tasks]}
    now["steps"] = sum(one.steps for one in tasks)
    try:
        with reading(path):
            saved = json.loads(path.read_text(encoding="utf-8"))
            changed = [f"{name} {saved[name]}, now {value}" for name, value in now.items() if saved[name] != value]
            predicted = {float(branch["share"]): float(branch["predicted"]) for branch in saved["branches"]}
    except UserError as problem:
        warn(f"The trial runs are not compared with: {problem}")
        return None
    if not changed and share not in predicted:
        changed = [f"shares {', '.join(f'{one:g}' for one in predicted)}, now {share:g}"]
    if changed:
        warn(f"{path} is of other settings and is not compared with: it has {brief('; '.join(changed), 300)}.")
        return None
    return Prediction(share, predicted[share])


def _results_file(child: Path) -> Path:
    return child.with_name(f"{child.name}.trials.json")
