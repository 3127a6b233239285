"""A run as Python holds it: its folder, and everything that can be asked of it or done with it."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trc2.api.arguments import Steps, Tasks, as_overrides, listed, task_configs
from trc2.api.model import TrainedFolder, cache_of
from trc2.config import RunConfig
from trc2.continuing.acceptance import ACCEPTANCE_FILE, check_acceptance, judge_child
from trc2.continuing.continue_run import default_folder, train_child
from trc2.continuing.dreams import dream_task
from trc2.continuing.interpolation import read_choice
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.errors import UserError, did_you_mean
from trc2.hf.export import export_run
from trc2.report.run import Run as RunRecord
from trc2.report.run import own_part, read_run
from trc2.report.summary import has_memory, summary_text, write_summary
from trc2.runs.folder import RunFolder
from trc2.system.console import PlainConsole
from trc2.system.files import reading
from trc2.system.numbers import short
from trc2.system.torchrun import is_first_process
from trc2.training.resume import resume_run
from trc2.training.setup import warn_on
from trc2.versions.attempt import plan_attempt
from trc2.versions.find import folder_to_continue
from trc2.versions.registry import Versions, is_versions

PICTURES = ("summary", "hippocampus")


@dataclass(frozen=True)
class TaskScores:
    """A task's validation score before any training, just after its own, and at the newest evaluation.

    None was not measured, or has not come yet. `test` is read once, at the end of a run.
    """

    before: float | None
    learned: float | None
    kept: float | None
    test: float | None


@dataclass(frozen=True)
class Forgetting:
    """What was lost since each task's own training, at the newest evaluation, in the metric's own measure.

    For perplexity that is nats: 0.1 means a perplexity 10.5 % higher. `mean`, `area` (over the stream) and the
    transfers are None while there is no past to forget.
    """

    metric: str
    tasks: dict[str, float]
    mean: float | None
    area: float | None
    backward_transfer: float | None
    forward_transfer: float | None


class Run(TrainedFolder):
    """A run on disk. Every call reads its folder again, also while another process trains it."""

    def __repr__(self) -> str:
        try:
            read = self._read()
        except UserError as problem:
            return f"Run({str(self.folder)!r}: {problem})"
        state = "finished" if read.is_finished else f"at step {read.last_step} of {read.spans[-1].end}"
        return f"Run({str(self.folder)!r}, {' → '.join(span.task for span in read.spans)}, {state})"

    # ------------------------------------------------------------------------------------------------ what it is

    @property
    def config(self) -> RunConfig:
        """Every setting, defaults too."""
        return RunFolder(self.folder).config()

    @property
    def is_finished(self) -> bool:
        return self._read().is_finished

    @property
    def parent(self) -> str | None:
        """The run or model it goes on from."""
        lineage = RunFolder(self.folder).lineage()
        return None if lineage is None else lineage.parent

    def scores(self, metric: str = "perplexity") -> dict[str, TaskScores]:
        """By task: before training, just after its own, and now."""
        run = self._read()
        self._table(run, metric)
        tests = run.final("test")
        return {
            task: TaskScores(before, learned, kept, tests.get(f"test/{task}/{metric}"))
            for task, (before, learned, kept) in run.task_scores(metric).items()
        }

    def history(self, metric: str = "perplexity") -> dict[int, dict[str, float]]:
        """Every evaluation: scores of the tasks by optimizer step. `pandas.DataFrame(…).T` makes a table of it."""
        table = self._table(self._read(), metric)
        return {step: dict(table.scores[step]) for step in table.steps}

    def forgetting(self, metric: str = "perplexity") -> Forgetting:
        """What was lost of each past task, and the numbers over all of them."""
        run = self._read()
        self._table(run, metric)
        values, root = run.summary(metric), f"cl/{metric}"
        tasks = {
            task: values[f"{root}/forgetting/{task}"] for task in run.tasks if f"{root}/forgetting/{task}" in values
        }
        means = [values.get(f"{root}/{name}") for name in ("forgetting", "aufc", "bwt", "fwt")]
        return Forgetting(metric, tasks, *means)

    def verdict(self) -> dict[str, Any] | None:
        """The verdict on every task the parent knew: acceptance.json of a run that `continue_` made, else None."""
        path = self.folder / ACCEPTANCE_FILE
        if not path.is_file():
            return None
        with reading(path):
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    # ------------------------------------------------------------------------------------------------ going on

    def resume(self, overrides: Iterable[str] = (), *, quiet: bool = False) -> Run:
        """Go on with an interrupted run, exactly as if it had not been interrupted. Returns this run.

        One that goes on from another run or model is judged at its end, by the limit it was made with. See `verdict()`.
        """
        console = PlainConsole(quiet=quiet)
        resume_run(self.folder, listed(overrides), console)
        if is_first_process():
            judge_child(self.folder, warn_on(console))
            write_summary(self.folder)
        return self

    def check(self, parent: str | Path | None = None, *, max_forgetting: float | None = None) -> dict[str, Any]:
        """Judge now whether this run may take its parent's place. Returns what `verdict()` reads from then on.

        `parent` names the run or model that this run continues, if that was moved. `max_forgetting` may only make the
        limit with which this run began smaller.
        """
        where = None if parent is None else Path(parent)
        verdict = judge_child(self.folder, self._warn, where, max_forgetting, again=True)
        if verdict is None:
            raise UserError(f"{self.folder} does not go on from another run or model: there is nothing to judge.")
        write_summary(self.folder)
        return verdict.describe()

    def continue_(
        self,
        tasks: Tasks,
        *,
        steps: Steps = None,
        folder: str | Path | None = None,
        max_forgetting: float | None = None,
        stop_at: float | None = None,
        max_drift: float | None = None,
        interpolate: float | str | None = None,
        replay_share: float | None = None,
        overrides: Iterable[str] = (),
        quiet: bool = False,
        **settings: object,
    ) -> Run:
        """Teach it more tasks, in a new folder. This run is not touched. Arguments are those of `trc2.train`.

        Parent and child are compared on held-out text. `max_forgetting` is the largest rise of a past task's perplexity
        that passes, and `child.verdict()["passed"]` says whether it was kept. The training stops when an evaluation
        finds a rise above `stop_at`, and the child ends with the last checkpoint within. `max_drift` limits how far the
        predictions may move from the parent's, in nats. `interpolate` is `--interpolate`.
        """
        return continue_from(
            self.folder, tasks, keep=None, steps=steps, folder=folder, max_forgetting=max_forgetting,
            stop_at=stop_at, max_drift=max_drift, dream=None, interpolate=interpolate, replay_share=replay_share,
            overrides=overrides, quiet=quiet, **settings,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ using it

    def export(
        self,
        folder: str | Path,
        *,
        with_replay: bool = False,
        with_store: bool = False,
        merge: bool = True,
        anyway: bool = False,
    ) -> Path:
        """A folder that transformers opens: safetensors, JSON, tokenizer and model card. See docs/hf-models.md.

        A run that its acceptance check refused, or has not judged yet, is exported `anyway` only. Its card says so.
        """
        from trc2 import __version__

        export_run(
            self.folder, Path(folder), __version__, with_replay=with_replay, with_store=with_store, merge=merge,
            anyway=anyway, warn=self._warn,
        )  # fmt: skip
        return Path(folder)

    # ------------------------------------------------------------------------------------------------ looking at it

    def summary(self) -> str:
        """What `trc2 report` says, as Markdown."""
        return summary_text(self._read(), RunFolder(self.folder).lineage())

    def figure(self, kind: str = "summary") -> Any:
        """A matplotlib figure: perplexity and forgetting over the stream, or what the memory did (`hippocampus`)."""
        if kind not in PICTURES:
            raise UserError(f"There is no figure '{kind}': {did_you_mean(str(kind), PICTURES)}")
        from trc2.report.figures import memory_figure, run_figure  # matplotlib and pandas take a second to import
        from trc2.system.plot_style import style

        run, lineage = self._read(), RunFolder(self.folder).lineage()
        run = run if lineage is None else own_part(run, lineage)
        if kind != "summary" and not has_memory(run):
            raise UserError(f"{self.folder} has no episodic memory to draw: use run.figure().")
        with style():
            return run_figure(run, is_continued=lineage is not None) if kind == "summary" else memory_figure(run)

    def _repr_png_(self) -> bytes:
        return bytes(self.figure().png())

    def _repr_html_(self) -> str:
        """A table of scores and the figure, for notebooks."""
        try:
            scores = self.scores()
            figure = base64.b64encode(self._repr_png_()).decode()
        except UserError as problem:
            return f"<pre>{html.escape(f'{self.folder}: {problem}')}</pre>"
        rows = "".join(
            f"<tr><td>{html.escape(task)}</td>{''.join(map(_cell, (s.before, s.learned, s.kept)))}</tr>"
            for task, s in scores.items()
        )
        head = "<tr><th>perplexity</th><th>before</th><th>just learned</th><th>now</th></tr>"
        return (
            f"<p><b>{html.escape(repr(self))}</b></p><table>{head}{rows}</table>"
            f'<img src="data:image/png;base64,{figure}" style="max-width:100%">'
        )

    # ------------------------------------------------------------------------------------------------ reading

    def _read(self) -> RunRecord:
        return read_run(self.folder)

    def _table(self, run: RunRecord, metric: str) -> Any:
        if metric not in run.tables:
            raise UserError(f"{self.folder} has no scores of '{metric}': {did_you_mean(str(metric), run.tables)}")
        return run.tables[metric]


def continue_from(
    source: str | Path,
    tasks: Tasks,
    *,
    keep: Tasks | None = None,
    steps: Steps = None,
    folder: str | Path | None = None,
    max_forgetting: float | None = None,
    stop_at: float | None = None,
    max_drift: float | None = None,
    dream: int | None = None,
    interpolate: float | str | None = None,
    replay_share: float | None = None,
    overrides: Iterable[str] = (),
    quiet: bool = False,
    **settings: object,
) -> Run:
    """Go on with new tasks from a run, or from a saved model: an export of ours, or any causal Hugging Face folder.

    A saved model does not say what it learned. `keep` is text it should go on knowing, given like tasks: measured
    against the model as it was, never trained. With `dream` the model generates so many tokens of such text itself. The
    other arguments are those of `Run.continue_`.

    Of a versions folder the accepted version goes on, in the folder of the next attempt. An attempt that was
    interrupted is taken up again. `Versions.promote` makes the result the accepted version.
    """
    parent = folder_to_continue(Path(source))
    cache = cache_of(RunFolder(parent).config() if RunFolder(parent).is_run else None)
    kept = task_configs(keep, None, cache) if keep else []
    new = task_configs(tasks, steps, cache)
    changes = [*as_overrides(settings), *listed(overrides)]
    request = ContinuationRequest(
        tuple(new), replay_share, tuple(changes), tuple(kept), max_forgetting, stop_at=stop_at, max_drift=max_drift,
        interpolate=read_choice(interpolate),
    )  # fmt: skip
    if dream is not None:
        dreamt = dream_task(parent, child_config(parent, replace(request, share=None), Path("child")), dream)
        request = replace(request, keep=(*kept, dreamt), generated=dreamt.name)
    console, is_begun = PlainConsole(quiet=quiet), False
    if is_versions(Path(source)):
        attempt = plan_attempt(Versions(source), request, None if folder is None else Path(folder))
        if attempt.taught_by is not None:
            return Run(attempt.folder / "run")
        parent, child, is_begun = attempt.parent, attempt.folder, attempt.is_begun
        request = replace(request, tasks=attempt.tasks, keep=attempt.keep)
    else:
        child = default_folder(parent, new) if folder is None else Path(folder)
    check_acceptance(parent, request.keep, max_forgetting, stop_at, max_drift)
    if is_begun:
        resume_run(child, [], console)
    else:
        train_child(parent, child, request, console)
    if is_first_process():
        judge_child(child, warn_on(console), parent)
        write_summary(child)
    return Run(child)


def _cell(value: float | None) -> str:
    return f"<td>{'–' if value is None or math.isnan(value) else short(value)}</td>"
