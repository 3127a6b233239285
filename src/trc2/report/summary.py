"""What one run learned and forgot, as Markdown, pictures and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trc2.continuing.acceptance import load_verdict
from trc2.continuing.advice import stop_sentence
from trc2.metrics.lm_eval import ROOT
from trc2.metrics.paired import Interval
from trc2.report.markdown import fill_template, listed, markdown, markdown_table
from trc2.report.run import Run, own_part, read_run, scores_in
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage
from trc2.system.files import make_folder, refuse_folder, write_atomically
from trc2.system.numbers import short

SCHEMA = 1


def write_summary(folder: Path, target: Path | None = None) -> list[Path]:
    """Write summary.md, summary.png and, with a memory, hippocampus.png, by default into the run. Return the paths."""
    from trc2.report.figures import memory_figure, run_figure
    from trc2.system.plot_style import style

    run, lineage = read_run(folder), RunFolder(folder).lineage()
    drawn = run if lineage is None else own_part(run, lineage)
    target = folder if target is None else target
    make_folder(target)
    with style():
        pictures = {"summary.png": run_figure(drawn, is_continued=lineage is not None).png()}
        if has_memory(drawn):
            pictures["hippocampus.png"] = memory_figure(drawn).png()
    written = {"summary.md": summary_text(run, lineage, list(pictures)).encode(), **pictures}
    for name in written:
        refuse_folder(target / name)
    for name, content in written.items():
        write_atomically(target / name, content)
    return [target / name for name in written]


def has_memory(run: Run) -> bool:
    """Whether the run logged what its episodic memory did."""
    return bool(run.series("train", "hippocampus/threshold")[0])


def summary_text(run: Run, lineage: Lineage | None, pictures: Sequence[str] = ()) -> str:
    """The run in Markdown. A continued run is shown with its own steps, beside its parent."""
    own = run if lineage is None else own_part(run, lineage)
    stop = RunFolder(run.folder).stop()
    metrics = run.final("eval")
    harness = [
        (path.removeprefix(f"{ROOT}/"), value, metrics.get(f"cl/{path}/forgetting"))
        for path, value in metrics.items()
        if path.startswith(f"{ROOT}/")
    ]
    tests = {task: run.final("test").get(f"test/{task}/perplexity") for task in run.tasks}
    return fill_template(
        "summary.md.jinja",
        run=run,
        own=own,
        lineage=lineage,
        stopped=None if stop is None or lineage is None else stop_sentence(stop, lineage.first_step),
        changes=map(markdown, _changes(own)),
        overlaps=[
            f"{_share(share)} of {markdown(part)} is in the train text of {markdown(task)}"
            for share, part, task in overlaps_of(run, MIN_OVERLAP)
        ],
        max_overlaps=MAX_OVERLAPS,
        kept=kept_text(run),
        boundary_table=boundary_table,
        forgetting_table=forgetting_table,
        forgetting_text=forgetting_text,
        when=_when,
        acceptance=acceptance_table(run),
        harness=harness,
        tests={task: score for task, score in tests.items() if score is not None},
        costs=_costs(run),
        pictures=pictures,
    )


def kept_text(run: Run) -> str:
    """Two tables: perplexities at the boundaries of the tasks, and forgetting."""
    caption = "Validation perplexity per token at task boundaries (bold: just after its own training):"
    return f"{caption}\n\n{boundary_table(run)}\n\n{forgetting_text(run)}"


def _changes(run: Run) -> list[str]:
    """A sentence for each past task: its perplexity after its own training, and now."""
    table = run.perplexity
    last = table.steps[-1] if table.steps else 0
    sentences = []
    for span in run.spans:
        if span.end >= last or not (table.has(span.end, span.task) and table.has(last, span.task)):
            continue
        before, learned, now = (table.scores.get(step, {}).get(span.task, math.nan) for step in (0, span.end, last))
        numbers = f"(perplexity {short(learned)} → {short(now)})"
        if span.end > 0 and before <= learned:
            sentences.append(f"{span.task} was not learned, so it could not be forgotten {numbers}.")
        elif math.isfinite(now / learned):
            change = now / learned - 1.0
            kept = f"lost {_share(change)}" if change > 0 else f"improved by {_share(-change)}"
            sentences.append(f"{span.task} {kept} {numbers}.")
    return sentences


def _share(value: float) -> str:
    percent = 100.0 * value
    return f"{percent:,.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


MIN_OVERLAP = 0.05  # of evaluation text that is also train text. Less is common phrases
MAX_OVERLAPS = 5


def overlaps_of(run: Run, least: float) -> list[tuple[float, str, str]]:
    """(share, split, task): evaluation text that is also in the train text of a task, largest share first."""
    overlaps = [
        (share, part, task)
        for part, by_task in (run.data.get("overlap") or {}).items()
        for task, share in by_task.items()
        if share >= least
    ]
    return sorted(overlaps, key=lambda overlap: -overlap[0])


def acceptance_table(run: Run) -> str:
    """The verdict of the acceptance check on every task that the parent knew. Empty if it was not asked."""
    verdict = load_verdict(RunFolder(run.folder))
    if verdict is None:
        return ""
    tasks = [[markdown(t.task), markdown(t.text), *_bounds(t.rise, "+.1%"), t.word] for t in verdict.tasks]
    drifts = [
        [markdown(d.task), markdown(d.text), *_bounds(d.nats, ".3g"), "within" if d.passed else "not within"]
        for d in verdict.drifts
    ]
    limit = "no limit" if verdict.limit is None else f"limit {verdict.limit:.1%}"
    max_drift = "no limit" if verdict.max_drift is None else f"limit {verdict.max_drift:g}"
    parts = []
    if tasks:
        table = markdown_table(("task", "held-out text", "worse by", "95 %", "verdict"), tasks, "llrrl")
        parts.append(f"Against the parent on held-out text ({limit}):\n\n{table}")
    if drifts:
        table = markdown_table(("text", "held-out part", "KL, nats a token", "95 %", "verdict"), drifts, "llrrl")
        parts.append(f"Mean KL divergence of the predictions from those of the parent ({max_drift}):\n\n{table}")
    return "\n\n".join(filter(None, [*parts, markdown(verdict.not_measured)]))


def _bounds(interval: Interval, form: str) -> tuple[str, str]:
    return format(interval.value, form), f"{interval.low:{form}} … {interval.high:{form}}"


def _when(run: Run) -> str:
    """Which step the newest numbers are of."""
    return "at the end" if run.is_finished else f"at step {max(run.perplexity.steps, default=0)}"


def forgetting_text(run: Run) -> str:
    """The table of forgetting, after a line that says in which units it is."""
    metrics = scores_in([run])
    in_logs = listed([f"log-{name}" for name, metric in metrics.items() if metric.is_log])
    by_gain = listed([name for name, metric in metrics.items() if metric.min_gain is not None])
    divided = f"; for {by_gain} divided by the task's gain where it has one" if by_gain else ""
    return f"Forgetting {_when(run)} ({in_logs}{divided}):\n\n{forgetting_table(run)}"


def boundary_table(run: Run, first: str = "step 0") -> str:
    """The score matrix: every task's perplexity at every boundary, as Markdown. `first` is the name of step 0."""
    table = run.perplexity
    ends = [0, *[span.end for span in run.spans if span.end > 0]]
    rows = []
    for span in run.spans:
        cells = []
        for end in ends:
            text = f"{table.scores[end][span.task]:.4g}" if table.has(end, span.task) else "–"
            cells.append(f"**{text}**" if end == span.end > 0 and text != "–" else text)
        bits = run.final("eval").get(f"eval/{span.task}/bits_per_byte")
        rows.append([markdown(span.task), *cells, "–" if bits is None else f"{bits:.3f}"])
    return markdown_table(["task", first, *(f"step {end}" for end in ends[1:]), f"bits/byte {_when(run)}"], rows)


def forgetting_table(run: Run) -> str:
    """Forgetting, its areas and transfer by metric, as Markdown."""
    rows = []
    for metric in run.tables:
        values = run.summary(metric)
        names = [f"cl/{metric}/{name}" for name in ("forgetting", "aufc", "aufc_task", "bwt", "fwt")]
        rows.append([metric, *(f"{values[name]:.3f}" if name in values else "–" for name in names)])
    return markdown_table(("metric", "forgetting", "AUFC", "AUFC per task", "BWT", "FWT"), rows)


def _costs(run: Run) -> str:
    cost = {name.removeprefix("efficiency/"): value for name, value in run.final("end").items()}
    try:
        return (
            f"{cost['tokens_per_second']:,.0f} tokens/s in training, {cost['peak_memory_gb']:.2f} GB at most, "
            f"{cost['gb_hours']:.3f} GB·h, {cost['training_flops_per_token'] / 1e6:.1f} MFLOP per token, utilisation "
            f"{cost['utilisation']:.2f}, {cost['evaluation_share']:.0%} of the time spent on evaluation."
        )
    except KeyError:
        return ""  # the run has not ended


def run_numbers(folder: Path) -> dict[str, Any]:
    """The numbers of a run's summary, for programs.

    `kept` and `forgetting` are of the newest evaluation. None was not measured. `parent` is the run that this one
    continues, with its scores at that step.
    """
    run, lineage = read_run(folder), RunFolder(folder).lineage()
    numbers = {"schema": SCHEMA, **numbers_of(run), "parent": None}
    if lineage is not None:
        scores = run.perplexity.scores.get(lineage.first_step, {})
        numbers["parent"] = {"folder": lineage.parent, "step": lineage.step, "perplexity": dict(scores)}
    return numbers


def numbers_of(run: Run) -> dict[str, Any]:
    tests, steps = run.final("test"), {span.task: span.end - span.start for span in reversed(run.spans)}
    tasks = {}
    for task, (before, learned, kept) in run.task_scores().items():
        prefix = f"test/{task}/"
        test = {name.removeprefix(prefix): value for name, value in tests.items() if name.startswith(prefix)}
        tasks[task] = {"steps": steps.get(task, 0), "before": before, "learned": learned, "kept": kept, "test": test}
    return {
        "run": run.name, "folder": str(run.folder), "finished": run.is_finished, "step": run.last_step,
        "steps": run.spans[-1].end, "seed": run.config.train.seed, "perplexity": tasks,
        "forgetting": {metric: run.summary(metric) for metric in run.tables}, "cost": run.final("end"),
    }  # fmt: skip
