"""`trc2 continue`: a finished run, or a saved model, learns more tasks in a new folder."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from rich.console import Console

from trc2.config import RunConfig, TaskConfig
from trc2.continuing.acceptance import read_verdict
from trc2.continuing.fork import make_child
from trc2.continuing.interpolation import check_interpolation
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.errors import UserError
from trc2.metrics.forgetting import PERPLEXITY, forgetting
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Prediction
from trc2.runs.records import score_table
from trc2.stream.sources import refuse_output_among_texts
from trc2.system.torchrun import num_restarts
from trc2.training.resume import resume_run
from trc2.training.setup import join_ranks


def default_folder(parent: Path, tasks: Sequence[TaskConfig]) -> Path:
    """PARENT+TASK, beside the parent, with a number if a refused child or one of another parent has that name.

    A child of PARENT+TASK that is taught the task again is PARENT+TASK-2, so names do not grow by a word a week.
    """
    home = parent.resolve()
    if not home.name:
        raise UserError(f"{parent} is not a run folder: name one.")
    task = "+".join(task.name for task in tasks)
    name = f"{re.sub(rf'(?<=.)[+]{re.escape(task)}(-[0-9]+)?$', '', home.name)}+{task}"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    beside = parent if parent.name else home
    return next(path for path in map(beside.with_name, names) if not _is_of_another(path, home))


def _is_of_another(path: Path, parent: Path) -> bool:
    """Whether a folder is the parent itself, a child of another run, or a child that was refused."""
    run = RunFolder(path)
    lineage = run.lineage() if run.is_run else None
    if lineage is None:
        return path.resolve() == parent
    with suppress(UserError):  # its parent is gone
        if lineage.find(path).resolve() == parent:
            verdict = read_verdict(run)
            return verdict is not None and not verdict.passed
    return True


def continue_run(
    parent: Path,
    path: Path,
    task: TaskConfig | Sequence[TaskConfig],
    console: Console,
    share: float | None = None,
    *,
    overrides: Sequence[str] = (),
    keep: Sequence[TaskConfig] = (),
    limit: float | None = None,
    prediction: Prediction | None = None,
    stop_at: float | None = None,
    max_drift: float | None = None,
    generated: str | None = None,
    interpolate: float | str | None = None,
) -> Path:
    """Train a finished run, or a saved model, on more tasks, in a new folder. See `trc2.continuing.fork`.

    Scores and references of all earlier tasks of a run carry over. Those of a saved model are unknown. `keep` is text
    that it should not forget, which is measured and not trained. `limit` is stored in the child, for
    `trc2.continuing.acceptance.judge_child`. The training stops when a past task has risen by more than `stop_at`.
    `max_drift` is how far the predictions may move, and `generated` names the text in `keep` that the parent generated.
    """
    tasks = (task,) if isinstance(task, TaskConfig) else tuple(task)
    request = ContinuationRequest(
        tasks, share, tuple(overrides), tuple(keep), limit, prediction, stop_at, max_drift, generated,
        interpolate,
    )  # fmt: skip
    return train_child(parent, path, request, console)


def train_child(parent: Path, path: Path, request: ContinuationRequest, console: Console) -> Path:
    """`continue_run` with all its arguments in one."""
    config = child_config(parent, request, path)
    has_limit = request.limit is not None or request.max_drift is not None
    check_interpolation(request.interpolate, config, is_run=RunFolder(parent).is_run, has_limit=has_limit)
    with join_ranks(config, console) as (ranks, quiet):
        is_new = not ranks.first_says(num_restarts() > 0 and RunFolder(path).is_run)
        if is_new:
            ranks.on_first(lambda: _check_is_free(path, config))
            make_child(parent, path, request, config, quiet, ranks)
        return resume_run(path, [], console, with_notes=not is_new)


def _check_is_free(path: Path, config: RunConfig) -> None:
    folder = RunFolder(path)
    if config.stream is not None:
        refuse_output_among_texts(path, config.stream)
    if folder.is_taken and folder.lineage() is not None:
        raise UserError(
            f"{path} already holds a run that goes on from another: `trc2 resume {path}` brings it to its end and "
            "judges it, and another run needs another --out."
        )
    folder.check_is_free("choose another --out")
    if path.is_symlink():  # a finished folder cannot be moved onto a link
        raise UserError(f"{path} is a link: give --out the folder itself.")
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{path} is not empty: choose another --out.")


def relative_forgetting(path: Path) -> float:
    """Mean relative rise of the perplexity of past tasks, from the end of their own training to the end of the run.

    NaN if a perplexity is NaN. Compare with `<=` a limit, which fails for NaN, not with `>`.
    """
    folder = RunFolder(path)
    table = score_table(folder.records(), PERPLEXITY, folder.schedule().spans)
    last = table.steps[-1] if table.steps else 0
    past = table.past(last)
    if not past or not all(table.has(step, s.task) for s in past for step in (s.end, last)):
        raise UserError(f"{folder} has no scores of past tasks at its end: there is nothing to compare.")
    rises = [math.expm1(forgetting(table, s, last)) for s in past]
    return sum(rises) / len(rises)
