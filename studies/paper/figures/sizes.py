"""Scores right after each task's training against model size and width."""

from __future__ import annotations

import math
from typing import Any

from studies.paper.figures.drawing import (
    Subject,
    add_legend,
    boundary_measures,
    colour_of,
    counts_words,
    draw_counts,
    family_of,
    marker_of,
    plot_point,
    scale_words,
)
from trc2.report.run import Measure
from trc2.report.tables import NotWritten
from trc2.system.plot_style import Figure, label, label_ends, plain_log_ticks


def several(subject: Subject, column: str) -> list[str]:
    """TRC² and baselines with the same replay, all sizes of them. Refuse a single size per family."""
    roles = subject.roles
    frame = roles.table.variants
    chosen = [
        name
        for name in roles.plain_training
        if (frame.backbone[name] == "trc2" and not roles.missing(name) and roles.is_controlled(name))
        or (frame.backbone[name] != "trc2" and roles.is_controlled(name) and frame.replays[name])
    ] or roles.plain_training
    values = {name: _of(subject, name, column) for name in chosen}
    per_family = {family: {values[name] for name in chosen if family_of(roles, name) == family}
                  for family in {family_of(roles, name) for name in chosen}}  # fmt: skip
    if sum(len(found) > 1 for found in per_family.values()) < 2:
        raise NotWritten(f"needs several {column} per family, of at least two families")
    return chosen


def _of(subject: Subject, variant: str, column: str) -> int:
    model = subject.roles.run(variant).config.model
    return int(subject.roles.table.variants.parameters[variant]) if column == "sizes" else int(model.d_model)


def _against_size(subject: Subject, name: str, metric: str, measures: list[Measure]) -> Figure:
    chosen, roles = several(subject, "sizes"), subject.roles
    families = list(dict.fromkeys(family_of(roles, variant) for variant in chosen))
    means = {measure: roles.table.means(measure) for measure in measures}
    better = sum(_improves(subject, chosen, family, means[measures[0]], measures[0]) for family in families)
    title = f"The largest model has the best {measures[0].title} in {better} of {len(families)} families"
    figure = Figure(name, title, len(measures))
    has_counts = False
    for axes, measure in zip(figure.panels, measures, strict=True):
        ends = []
        for family in families:
            members = [v for v in chosen if family_of(roles, v) == family and v in means[measure].index]
            members.sort(key=lambda variant: _of(subject, variant, "sizes"))
            points = [(_of(subject, v, "sizes"), means[measure].loc[v]) for v in members]
            for variant, (size, row) in zip(members, points, strict=True):
                y = tuple(measure.factor * row[end] for end in ("mean", "low", "high"))
                colour = colour_of(roles, variant)
                plot_point(axes, (1e-6 * size, math.nan, math.nan), y, colour, marker_of(roles, variant), colour)
            if points:
                colour = colour_of(roles, members[0])
                axes.plot(
                    [1e-6 * x for x, _ in points], [measure.factor * row["mean"] for _, row in points], color=colour
                )
                ends.append((measure.factor * points[-1][1]["mean"], family, colour))
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        has_counts |= measure.is_log and draw_counts(axes, subject, measure.name.split("/")[0])
        _scale(axes, measure)
        axes.set_xlabel("parameters (million)")
        if axes is figure.panels[-1]:
            label_ends(axes, ends)
    figure.caption = (
        f"{metric} right after each task's own training. 95 % intervals over seeds. "
        + scale_words(subject, chosen)
        + counts_words(has_counts)
    )
    return figure


def _improves(subject: Subject, chosen: list[str], family: str, means: Any, measure: Measure) -> bool:
    members = [v for v in chosen if family_of(subject.roles, v) == family and v in means.index]
    if len(members) < 2:
        return False
    largest = max(members, key=lambda variant: _of(subject, variant, "sizes"))
    best = means.loc[members]["mean"].idxmin() if measure.better == "lower" else means.loc[members]["mean"].idxmax()
    return bool(best == largest)


def _scale(axes: Any, measure: Measure) -> None:
    axes.set_title(label(measure.title))
    axes.set_ylabel(label(f"{'perplexity ↓' if measure.is_log else f'score ↑ {measure.unit}'}".strip()))
    if measure.is_log:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)


def perplexity_against_size(subject: Subject) -> Figure:
    measures = [measure for measure in boundary_measures(subject) if measure.is_log]
    return _against_size(subject, "size_perplexity", "Perplexity", measures)


def text_against_size(subject: Subject) -> Figure:
    measures = [measure for measure in boundary_measures(subject) if not measure.is_log]
    if not measures:
        raise NotWritten("needs a text score in every evaluation")
    return _against_size(subject, "size_text", "Text score", measures)


def scores_by_width(subject: Subject) -> Figure:
    """Scores grouped by width d, families side by side in each group."""
    chosen, roles, measures = several(subject, "widths"), subject.roles, boundary_measures(subject)
    widths = sorted({_of(subject, variant, "widths") for variant in chosen})
    families = list(dict.fromkeys(family_of(roles, variant) for variant in chosen))
    figure = Figure("families_by_width", f"Scores right after training at {len(widths)} widths", len(measures))
    for axes, measure in zip(figure.panels, measures, strict=True):
        means = roles.table.means(measure)
        for variant in (v for v in chosen if v in means.index):
            group = widths.index(_of(subject, variant, "widths"))
            x = group + 0.8 * (families.index(family_of(roles, variant)) + 0.5) / len(families) - 0.4
            y = tuple(measure.factor * means.loc[variant, end] for end in ("mean", "low", "high"))
            colour = colour_of(roles, variant)
            plot_point(axes, (x, math.nan, math.nan), y, colour, marker_of(roles, variant), colour)
        axes.set_xticks(range(len(widths)), [f"d = {width}" for width in widths])
        _scale(axes, measure)
    firsts = [next(v for v in chosen if family_of(roles, v) == family) for family in families]
    add_legend(figure, roles, firsts, families)
    figure.caption = f"Right after each task's own training. 95 % intervals. {scale_words(subject, chosen)}"
    return figure
