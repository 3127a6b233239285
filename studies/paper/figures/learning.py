"""The nine learning curves: perplexity, text score and forgetting over the stream."""

from __future__ import annotations

import math
from typing import Any

from studies.paper.figures.comparisons import needed_panel
from studies.paper.figures.drawing import (
    TEXT_TITLES,
    Band,
    Curve,
    Subject,
    area_curve,
    average,
    colour_of,
    counts_words,
    draw_band,
    draw_counts,
    family_of,
    listed,
    scale_words,
    score_curve,
    standard_deviation,
    standard_error,
    text_metric,
)
from trc2.report.figures import draw_tasks
from trc2.report.run import Run
from trc2.report.tables import NotWritten
from trc2.system.plot_style import Figure, ink, label, label_ends, plain_log_ticks


def nine_curves(subject: Subject) -> Figure:
    """Rows: perplexity of each task, text score of each task, AUFC of each metric."""
    roles, tasks = subject.roles, subject.tasks
    variants = [variant for variant in needed_panel(subject) if not roles.unlearned(variant)]
    if len(tasks) < 2:
        raise NotWritten("needs runs that train at least two tasks one after another")
    example = roles.runs(variants[0])[0]
    texts = [(task, metric) for task in tasks if (metric := text_metric(example, task)) is not None]
    metrics = [name for name in ("perplexity", "bleu", "token_accuracy") if name in example.tables]
    panels: list[tuple[str, str, bool, Any]] = [
        *[(f"{subject.task_title(task)}: perplexity ↓", "score", True, ("perplexity", task)) for task in tasks],
        *[
            (f"{subject.task_title(task)}: {TEXT_TITLES[metric]} ↑", "score", False, (metric, task))
            for task, metric in texts
        ],
        *[(f"AUFC of {TEXT_TITLES.get(metric, metric)} ↓", "area", False, (metric,)) for metric in metrics],
    ]
    columns = max(1, min(3, len(tasks)))
    figure = Figure("learning_curves", _finding(subject), len(panels), columns=columns, height=2.3)
    has_counts = False
    for place, (axes, (title, kind, is_log, which)) in enumerate(zip(figure.panels, panels, strict=True)):
        ends = []
        for variant in reversed(variants):
            band = _band(roles.runs(variant), kind, which, is_log)
            if band is not None and band.steps:
                is_ours = variant == roles.trc2
                colour = colour_of(roles, variant) if is_ours else ink("pale")
                draw_band(axes, band, colour, is_main=is_ours)
                last = band.middle[-1]
                ends.append((last, family_of(roles, variant), colour_of(roles, variant) if is_ours else ink("grey")))
        draw_tasks(axes, example.spans, roles.table.task_titles if place < columns else {}, example.end)
        if place >= columns:
            _remove_names(axes)
        axes.set_title(label(title), pad=14 if place < columns else 6)
        if is_log:
            axes.set_yscale("log")
            has_counts |= draw_counts(axes, subject, which[1])
            plain_log_ticks(axes.yaxis)
        if place < len(panels) - columns:
            axes.set_xlabel("")
        if place % columns == columns - 1:
            label_ends(axes, [end for end in ends if math.isfinite(end[0])])
    absent = [roles.title(variant) for variant in roles.panel if variant not in variants]
    skipped = f" Not drawn, as a task was not learned: {listed(absent)}." if absent else ""
    figure.caption = (
        "Blue: TRC². Grey: each baseline with the same replay. Means over seeds, for TRC² with bands of one standard "
        "error (scores) or one standard deviation (AUFC), as in the paper. BLEU and accuracy areas are shares of the "
        f"task's gain where it has one.{skipped} {scale_words(subject, variants)}{counts_words(has_counts)}"
    )
    return figure


def _remove_names(axes: Any) -> None:
    for text in list(axes.texts):
        text.remove()


def _band(runs: list[Run], kind: str, which: Any, is_log: bool) -> Band | None:
    curves: list[Curve] = [score_curve(run, *which) if kind == "score" else area_curve(run, *which) for run in runs]
    return average(curves, standard_error if kind == "score" else standard_deviation, is_log=is_log)


def _finding(subject: Subject) -> str:
    """Where TRC² ends on the first task among the families."""
    roles, first = subject.roles, subject.tasks[0]
    ends = {}
    for variant in (v for v in roles.panel if not roles.unlearned(v)):
        known = [value for run in roles.runs(variant) if (value := run.score("perplexity", first, run.end)) is not None]
        if known:
            ends[variant] = sum(known) / len(known)
    ours = ends[roles.trc2] if roles.trc2 is not None else math.nan
    others = [value for variant, value in ends.items() if variant != roles.trc2]
    rest = f"baselines with the same replay at {min(others):,.0f} to {max(others):,.0f}" if others else "no baseline"
    return f"On {subject.task_title(first)}, TRC² ends at perplexity {ours:,.0f}, {rest}"
