"""What one run learned and forgot, as Markdown, pictures and JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trc2.metrics.lm_eval import ROOT
from trc2.report.markdown import markdown
from trc2.report.run import Run, own_part, read_run, scores_in
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage
from trc2.system.files import make_folder, reading, write_atomically

SCHEMA = 1


def write_summary(folder: Path, place: Path | None = None) -> list[Path]:
    """Write summary.md, summary.png and, with a memory, hippocampus.png, by default into the run; return the paths."""
    from trc2.report.figures import memory_figure, run_figure
    from trc2.system.plot_style import style

    run, lineage = read_run(folder), RunFolder(folder).lineage()
    drawn = run if lineage is None else own_part(run, lineage)
    place = folder if place is None else place
    make_folder(place)
    with style():
        pictures = {"summary.png": run_figure(drawn, is_continued=lineage is not None).png()}
        if has_memory(drawn):
            pictures["hippocampus.png"] = memory_figure(drawn).png()
    text = summary_text(run, list(pictures)) if lineage is None else child_text(run, lineage, list(pictures))
    written = {"summary.md": text.encode(), **pictures}
    for name, content in written.items():
        write_atomically(place / name, content)
    return [place / name for name in written]


def has_memory(run: Run) -> bool:
    """Whether the run logged what its episodic memory did."""
    return bool(run.series("train", "hippocampus/threshold")[0])


def summary_text(run: Run, pictures: list[str]) -> str:
    """The run in Markdown."""
    lines = [f"# {markdown(run.name)}", "", _state_line(run), "", *_in_words(run), *_overlap_lines(run)]
    lines += ["Validation perplexity per token at task boundaries (bold: just after its own training):", ""]
    lines += [boundary_table(run), ""]
    lines += [forgetting_caption(run), ""]
    lines += [
        forgetting_table(run),
        "",
        *_lm_lines(run),
        *_test_lines(run),
        *_cost_lines(run),
        *[f"![{name}]({name})" for name in pictures],
        "",
    ]
    return "\n".join(lines)


def child_text(run: Run, lineage: Lineage, pictures: list[str]) -> str:
    """A run that goes on from another one, or from a model: its own steps, with the parent beside it."""
    own = own_part(run, lineage)
    kind = "the run" if lineage.is_run else "the saved model"
    at = f" at its step {lineage.step}" if lineage.is_run else ""
    lines = [
        f"# {markdown(run.name)}",
        "",
        f"Goes on from {kind} {markdown(lineage.parent)}{at}. {_state_line(own)}",
        "",
    ]
    lines += [*_in_words(own), *_overlap_lines(run)]
    lines += [
        "Validation perplexity per token, of the parent and after each new task (bold: just after its own training):",
        "", boundary_table(own, first="parent"), "",
    ]  # fmt: skip
    if any(span.end == 0 for span in own.spans):
        caption = f"Forgetting against the parent, {_when(own)} (perplexity in nats):"
        lines += [caption, "", forgetting_table(own), ""]
    else:
        lines += ["A saved model does not say what it learnt: what was forgotten of it is unknown.", ""]
    if lineage.is_run:
        lines += [f"Over the parent and this run together. {forgetting_caption(run)}", "", forgetting_table(run), ""]
    lines += [*acceptance_lines(run), *_lm_lines(run), *_test_lines(run), *_cost_lines(run)]
    lines += [*[f"![{name}]({name})" for name in pictures], ""]
    return "\n".join(lines)


def _in_words(run: Run) -> list[str]:
    """What happened to each past task, in a sentence: its perplexity after its own training, and now."""
    table = run.perplexity
    last = table.steps[-1] if table.steps else 0
    sentences = []
    for span in run.spans:
        if span.end >= last or not (table.has(span.end, span.task) and table.has(last, span.task)):
            continue
        before, learnt, now = (table.scores.get(step, {}).get(span.task, math.nan) for step in (0, span.end, last))
        numbers = f"(perplexity {short(learnt)} → {short(now)})"
        if span.end > 0 and before <= learnt:
            sentences.append(f"{span.task} was not learnt, so it could not be forgotten {numbers}.")
        elif math.isfinite(now / learnt):
            change = now / learnt - 1.0
            kept = f"lost {_share(change)}" if change > 0 else f"improved by {_share(-change)}"
            sentences.append(f"{span.task} {kept} {numbers}.")
    return [" ".join(map(markdown, sentences)), ""] if sentences else []


def _share(value: float) -> str:
    percent = 100.0 * value
    return f"{percent:,.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


MIN_OVERLAP = 0.05  # of evaluation text that is also train text; less is common phrases
MAX_OVERLAPS = 5


def _overlap_lines(run: Run) -> list[str]:
    """Where evaluation text was also trained on, which makes its scores too good."""
    shares = [
        (share, where, task)
        for where, found in dict(run.data.get("overlap") or {}).items()
        for task, share in found.items()
        if share >= MIN_OVERLAP
    ]
    named = [
        f"{_share(share)} of {markdown(where)} is in the train text of {markdown(task)}"
        for share, where, task in sorted(shares, key=lambda found: -found[0])
    ]
    more = f"; and {len(named) - MAX_OVERLAPS} more" if len(named) > MAX_OVERLAPS else ""
    if not named:
        return []
    return [
        f"Overlap (equal runs of 13 tokens): {'; '.join(named[:MAX_OVERLAPS])}{more}. Such scores are too good.",
        "",
    ]


def acceptance_lines(run: Run) -> list[str]:
    """What the acceptance check said of every task the parent knew, if it was asked."""
    path = run.folder / "acceptance.json"
    if not path.is_file():
        return []
    with reading(path):
        gate = json.loads(path.read_text(encoding="utf-8"))
        limit = "no limit" if gate["limit"] is None else f"limit {gate['limit']:.1%}"
        rows = [
            f"| {markdown(task)} | {markdown(', '.join(filter(None, (found['split'], _documents(found)))))} "
            f"| {_percent(found['rise'])} | {_percent(found['low'])} … {_percent(found['high'])} "
            f"| {markdown(found['verdict'])} |"
            for task, found in gate["tasks"].items()
        ]
    if not rows:
        return []
    header = ["| task | held-out text | worse by | 95 % | verdict |", "|---|---|---:|---:|---|"]
    return [f"Against the parent on held-out text ({limit}):", "", *header, *rows, ""]


def _documents(found: dict[str, object]) -> str:
    """How many, and what was measured on them where it was not the perplexity."""
    measure, excluded = found.get("measure", "perplexity"), int(str(found.get("excluded", 0)))
    if excluded:
        return f"{int(str(found['documents']))} documents, {excluded} left out as trained on"
    return f"{int(str(found['documents']))} documents" + ("" if measure == "perplexity" else f": {measure}")


def _percent(value: object) -> str:
    """JSON has no NaN or infinity: they are words there."""
    return f"{float(str(value)):+.1%}"


def _when(run: Run) -> str:
    """Which step the newest numbers are of."""
    return "at the end" if run.is_finished else f"at step {max(run.perplexity.steps, default=0)}"


def forgetting_caption(run: Run) -> str:
    metrics = scores_in([run])
    in_logs = _joined([f"log-{name}" for name, metric in metrics.items() if metric.is_log])
    by_gain = _joined([name for name, metric in metrics.items() if metric.min_gain is not None])
    divided = f"; for {by_gain} divided by the task's gain where it has one" if by_gain else ""
    return f"Forgetting {_when(run)} ({in_logs}{divided}):"


def boundary_table(run: Run, first: str = "step 0") -> str:
    """The score matrix: every task's perplexity at every boundary, as Markdown; `first` is what step 0 is called."""
    table = run.perplexity
    ends = [0, *[span.end for span in run.spans if span.end > 0]]
    lines = [f"| task | {first}" + "".join(f" | step {end}" for end in ends[1:]) + f" | bits/byte {_when(run)} |"]
    lines += ["|---|" + "---:|" * (len(ends) + 1)]
    for span in run.spans:
        cells = []
        for end in ends:
            text = f"{table.scores[end][span.task]:.4g}" if table.has(end, span.task) else "–"
            cells.append(f"**{text}**" if end == span.end > 0 and text != "–" else text)
        bits = run.final("eval").get(f"eval/{span.task}/bits_per_byte")
        cells.append("–" if bits is None else f"{bits:.3f}")
        lines.append(f"| {markdown(span.task)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def forgetting_table(run: Run) -> str:
    """Forgetting, its areas and transfer by metric, as Markdown."""
    lines = ["| metric | forgetting | AUFC | AUFC per task | BWT | FWT |", "|---|---:|---:|---:|---:|---:|"]
    for metric in run.tables:
        values = run.summary(metric)
        names = ("forgetting", "aufc", "aufc_task", "bwt", "fwt")
        cells = [f"{values[f'cl/{metric}/{name}']:.3f}" if f"cl/{metric}/{name}" in values else "–" for name in names]
        lines.append(f"| {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _state_line(run: Run) -> str:
    order = " → ".join(f"{markdown(span.task)} ({span.end - span.start} steps)" for span in run.spans if span.end)
    state = "finished" if run.is_finished else f"unfinished, at step {run.last_step} of {run.spans[-1].end}"
    return f"{order}; seed {run.config.train.seed}; {run.config.train.tokens_per_step} tokens a step; {state}."


def _test_lines(run: Run) -> list[str]:
    """The scores on test text, which is read once, at the end."""
    found = run.final("test")
    scores = {task: found.get(f"test/{task}/perplexity") for task in run.tasks}
    cells = [f"{markdown(task)} {score:.4g}" for task, score in scores.items() if score is not None]
    return [f"Test perplexity, read once at the end: {', '.join(cells)}.", ""] if cells else []


def _lm_lines(run: Run) -> list[str]:
    """Tasks of the lm-evaluation-harness at the last boundary, and how far they are behind their best earlier one."""
    found = run.final("eval")
    rows = []
    for path, value in found.items():
        root, _, name = path.partition("/")
        if root == ROOT:
            lost = found.get(f"cl/{path}/forgetting")
            rows.append(f"| {markdown(name)} | {value:.4g} | {'–' if lost is None else f'{lost:.4g}'} |")
    head = ["| lm-evaluation-harness | value | forgetting |", "|---|---:|---:|"]
    return [*head, *rows, ""] if rows else []


COSTS = (
    "tokens_per_second", "peak_memory_gb", "gb_hours", "training_flops_per_token", "utilisation", "evaluation_share",
)  # fmt: skip


def _cost_lines(run: Run) -> list[str]:
    cost = run.final("end")
    if not cost.keys() >= {f"efficiency/{name}" for name in COSTS}:
        return []
    return [
        f"{cost['efficiency/tokens_per_second']:,.0f} tokens/s in training, "
        f"{cost['efficiency/peak_memory_gb']:.2f} GB at most, {cost['efficiency/gb_hours']:.3f} GB·h, "
        f"{cost['efficiency/training_flops_per_token'] / 1e6:.1f} MFLOP per token, "
        f"utilisation {cost['efficiency/utilisation']:.2f}, "
        f"{cost['efficiency/evaluation_share']:.0%} of the time spent on evaluation.",
        "",
    ]


def short(value: float) -> str:
    """Three digits, or the whole number; nan and inf as they are."""
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


def _joined(names: list[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def run_numbers(folder: Path) -> dict[str, Any]:
    """The numbers of a run's summary, for programs.

    `kept` and `forgetting` are of the newest evaluation. None was not measured. `parent` is the run that this one
    continues, with its scores at that step.
    """
    run, lineage = read_run(folder), RunFolder(folder).lineage()
    numbers = {"schema": SCHEMA, **numbers_of(run), "parent": None}
    if lineage is not None:
        scores = run.perplexity.scores.get(lineage.step, {})
        numbers["parent"] = {"folder": lineage.parent, "step": lineage.step, "perplexity": dict(scores)}
    return numbers


def numbers_of(run: Run) -> dict[str, Any]:
    table, tests = run.perplexity, run.final("test")

    def score(task: str, step: int | None) -> float | None:
        return table.scores[step][task] if step is not None and table.has(step, task) else None

    tasks = {}
    for task in run.tasks:
        span = next((span for span in run.spans if span.task == task), None)
        prefix = f"test/{task}/"
        tasks[task] = {
            "steps": 0 if span is None else span.end - span.start,
            "before": score(task, 0),
            "learnt": score(task, None if span is None else span.end),
            "kept": score(task, max(table.steps, default=None)),
            "test": {name.removeprefix(prefix): value for name, value in tests.items() if name.startswith(prefix)},
        }
    return {
        "run": run.name, "folder": str(run.folder), "finished": run.is_finished, "step": run.last_step,
        "steps": run.spans[-1].end, "seed": run.config.train.seed, "perplexity": tasks,
        "forgetting": {metric: run.summary(metric) for metric in run.tables}, "cost": run.final("end"),
    }  # fmt: skip
