"""Families beside each other: intervals, a radar, forgetting, and what quality costs.

TRC² is TRC² itself, never its best ablation. A baseline is shown with the same replay as TRC², and hollow without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from studies.paper.builders import FLOPS_PER_TOKEN
from studies.paper.figures.drawing import (
    FILLED,
    Subject,
    add_legend,
    boundary_measures,
    colour_of,
    counts_words,
    draw_counts,
    face_of,
    family_of,
    listed,
    marker_of,
    plot_point,
    retitle,
    scale_words,
)
from trc2.report.run import AUFC, SPEED, Measure, area_at
from trc2.report.tables import NotWritten, checkpoint_titles
from trc2.system.plot_style import Figure, ink, label, plain_log_ticks


def needed_panel(subject: Subject) -> list[str]:
    """TRC² and one configuration per baseline. Refuse fewer than two families."""
    if subject.roles.trc2 is None or len(subject.roles.panel) < 2:
        raise NotWritten("needs TRC² and at least one baseline")
    return subject.roles.panel


def with_and_without(subject: Subject) -> dict[str, list[str]]:
    """By family: the configurations with and without replay."""
    roles = subject.roles
    found = {family_of(roles, variant): [variant] for variant in needed_panel(subject)}
    alone = [*roles.baselines(replay=False).values(), roles.ablation("replay")]
    for variant in alone:
        if variant is not None and variant not in found.get(family_of(roles, variant), []):
            found.setdefault(family_of(roles, variant), []).append(variant)
    return found


def _triple(means: Any, variant: str, factor: float = 1.0) -> tuple[float, float, float]:
    row = means.loc[variant]
    return factor * row["mean"], factor * row["low"], factor * row["high"]


def _rank(subject: Subject, measure: Measure, variants: Sequence[str]) -> int:
    """The place of TRC² among the variants that have the number, 1 being the best."""
    means = subject.roles.table.means(measure)["mean"]
    known = means.loc[[variant for variant in variants if variant in means.index]].dropna()
    ours = known[subject.roles.trc2]
    return 1 + int((known < ours).sum() if measure.better == "lower" else (known > ours).sum())


def forest(subject: Subject) -> Figure:
    """Every family's scores right after training, with 95 % intervals."""
    rows, measures, roles = with_and_without(subject), boundary_measures(subject), subject.roles
    firsts = sum(_rank(subject, measure, roles.panel) == 1 for measure in measures)
    title = f"With the same replay, TRC² is first in {firsts} of {len(measures)} scores right after training"
    figure = Figure("forest_scores", title, len(measures), height=0.26 * len(rows) + 1.0)
    has_counts = False
    for place, (axes, measure) in enumerate(zip(figure.panels, measures, strict=True)):
        means = roles.table.means(measure)
        for height, variants in enumerate(rows.values()):
            for shift, variant in zip((-0.14, 0.14), variants, strict=False):
                if variant in means.index and math.isfinite(means["mean"][variant]):
                    x = _triple(means, variant, measure.factor)
                    y = (-height + shift, math.nan, math.nan)
                    colour = colour_of(roles, variant)
                    plot_point(axes, x, y, colour, marker_of(roles, variant), face_of(roles, variant))
        axes.set_yticks(
            [-float(height) for height in range(len(rows))], list(rows) if place % 3 == 0 else [""] * len(rows)
        )
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.grid(axis="y", color=ink("pale"), linewidth=0.4)
        axes.tick_params(axis="y", length=0)
        axes.set_title(label(f"{measure.title} {'↓' if measure.better == 'lower' else '↑'} {measure.unit}".strip()))
        if measure.is_log:
            axes.set_xscale("log")
            has_counts |= draw_counts(axes, subject, measure.name.split("/")[0], vertical=True)
            plain_log_ticks(axes.xaxis)
    figure.caption = (
        f"Scores of each task right after its own training. {FILLED} Whiskers: 95 % t-intervals over seeds. "
        f"{scale_words(subject, roles.panel)}{counts_words(has_counts)}"
    )
    return figure


def area_by_family(subject: Subject) -> Figure:
    """AUFC before the last task and at the end. The paper's figure of the best AUFC per family."""
    rows, roles = with_and_without(subject), subject.roles
    titles = checkpoint_titles(roles.table)
    if not titles:
        raise NotWritten("needs runs that train at least two tasks one after another")
    measures = [Measure(f"aufc{p}", title, area_at("perplexity", p), is_forgetting=True) for p, title in titles.items()]
    learned = [variant for variant in roles.panel if not roles.table.variants.unlearned[variant]]
    place = _rank(subject, AUFC, learned) if roles.trc2 in learned else 0
    title = f"With the same replay, TRC² is number {place} of {len(learned)} families in forgetting"
    figure = Figure("aufc_by_family", title, len(measures), columns=2, height=0.3 * len(rows) + 1.0)
    for axes, measure in zip(figure.panels, measures, strict=True):
        means = roles.table.means(measure)
        for height, variants in enumerate(rows.values()):
            for shift, variant in zip((-0.18, 0.18), variants, strict=False):
                if variant not in means.index:
                    continue
                mean, low, high = _triple(means, variant)
                error = [[mean - low], [high - mean]] if math.isfinite(low) else None
                look = {"color": face_of(roles, variant), "edgecolor": colour_of(roles, variant)}
                whiskers = {"elinewidth": 0.9, "ecolor": ink("grey")}
                axes.barh(-height + shift, mean, 0.34, xerr=error, error_kw=whiskers, **look)
        names = [f"{family} †" if any(roles.table.variants.unlearned[v] for v in variants) else family
                 for family, variants in rows.items()]  # fmt: skip
        axes.set_yticks(
            [-float(height) for height in range(len(rows))], names if axes is figure.panels[0] else [""] * len(rows)
        )
        axes.tick_params(axis="y", length=0)
        axes.set_title(label(measure.title))
        axes.set_xlabel("forgetting, AUFC ↓ (nats)")
    figure.caption = (
        f"TRC² itself and each baseline with the same replay (filled), and without replay (hollow). Whiskers: 95 % "
        f"t-intervals. †: a run did not learn one of its tasks. {scale_words(subject, roles.panel)}"
    )
    return figure


def radar(subject: Subject) -> Figure:
    """Each axis runs from the worst to the best family in one score right after training."""
    measures, roles = boundary_measures(subject), subject.roles
    if len(measures) < 3:
        raise NotWritten("needs at least three scores, so two tasks with a text score each")
    tables = {measure: roles.table.means(measure)["mean"] for measure in measures}
    whole = [v for v in needed_panel(subject) if all(v in t.index and math.isfinite(t[v]) for t in tables.values())]
    learned = [variant for variant in whole if not roles.table.variants.unlearned[variant]]
    if len(learned) < 2 or roles.trc2 not in learned:
        raise NotWritten("needs TRC² and another family that have all scores and learned their tasks")
    ranks = {v: sum(_rank_of(tables[m], v, learned, m) for m in measures) / len(measures) for v in learned}
    place = 1 + sum(rank < ranks[roles.trc2] for rank in ranks.values())
    ours = f"TRC² has mean rank {ranks[roles.trc2]:.1f} over {len(measures)} scores"
    title = f"{ours}, number {place} of {len(learned)} families"
    figure = Figure("radar", title, 1, height=4.6)
    figure.panels[0].remove()
    axes: Any = figure.drawing.add_subplot(projection="polar")
    angles = [2 * math.pi * index / len(measures) for index in range(len(measures))]
    for variant in reversed(learned):
        radii = [_radius(tables[measure], variant, learned, measure) for measure in measures]
        is_ours = variant == roles.trc2
        axes.plot([*angles, angles[0]], [*radii, radii[0]], color=colour_of(roles, variant),
                  label=family_of(roles, variant), marker=marker_of(roles, variant), markersize=5,
                  linewidth=2.4 if is_ours else 1.1, zorder=5 if is_ours else 3)  # fmt: skip
    axes.set_xticks(angles, [label(measure.title) for measure in measures])
    axes.tick_params(axis="x", pad=12)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.1, 0.55, 1.0], ["worst", "", "best"], color=ink("grey"), fontsize=7.5)
    axes.spines["polar"].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.3, 0.5), frameon=False)
    skipped = [roles.title(variant) for variant in roles.panel if variant not in learned]
    left_out = f" Left out, as they did not learn a task: {listed(skipped)}." if skipped else ""
    figure.caption = (
        "Scores right after each task's own training, one configuration per family: TRC² itself, and baselines with "
        f"the same replay. Ranks count; distances on an axis mean little.{left_out} {scale_words(subject, learned)}"
    )
    return figure


def _rank_of(means: Any, variant: str, among: Sequence[str], measure: Measure) -> int:
    values = means.loc[list(among)]
    return 1 + int((values < means[variant]).sum() if measure.better == "lower" else (values > means[variant]).sum())


def _radius(means: Any, variant: str, among: Sequence[str], measure: Measure) -> float:
    low, high = means.loc[list(among)].min(), means.loc[list(among)].max()
    share = 0.5 if high == low else (means[variant] - low) / (high - low)
    return 0.1 + 0.9 * float(1 - share if measure.better == "lower" else share)


def _scatter(subject: Subject, axes: Any, x: Measure, y: Measure, variants: Sequence[str]) -> list[str]:
    """One point per configuration. Returns those that no other beats in both coordinates."""
    roles, table = subject.roles, subject.roles.table
    xs, ys = table.means(x), table.means(y)
    known = [v for v in variants if v in xs.index and v in ys.index]
    known = [v for v in known if math.isfinite(xs["mean"][v]) and math.isfinite(ys["mean"][v])]
    for variant in known:
        point = _triple(xs, variant, x.factor), _triple(ys, variant, y.factor)
        plot_point(axes, *point, colour_of(roles, variant), marker_of(roles, variant), face_of(roles, variant))
    learned = [v for v in known if not table.variants.unlearned[v]]
    return [v for v in learned if not any(_beats(xs, ys, other, v, x, y) for other in learned)]


def _beats(xs: Any, ys: Any, other: str, variant: str, x: Measure, y: Measure) -> bool:
    """Whether another configuration is at least as good in both and better in one."""
    gaps = [(means["mean"][other] - means["mean"][variant]) * (1 if measure.better == "lower" else -1)
            for means, measure in ((xs, x), (ys, y))]  # fmt: skip
    return max(gaps) <= 0 and min(gaps) < 0


def efficiency_frontier(subject: Subject) -> Figure:
    """Text scores right after training against training FLOPs. The paper has GB·h, which seconds would make noise."""
    variants = needed_panel(subject)
    measures = [measure for measure in boundary_measures(subject) if not measure.is_log]
    if not measures:
        raise NotWritten("needs a text score in every evaluation")
    work = Measure("mflops", "training FLOPs", FLOPS_PER_TOKEN.of, factor=1e-6)
    figure = Figure("efficiency_frontier", " ", len(measures), height=3.1)
    on_front = 0
    for axes, measure in zip(figure.panels, measures, strict=True):
        on_front += subject.roles.trc2 in _scatter(subject, axes, work, measure, variants)
        axes.set_title(label(measure.title))
        axes.set_xlabel("training MFLOPs per token")
        axes.set_ylabel(label(f"score ↑ {measure.unit}".strip()))
    add_legend(figure, subject.roles, variants, [family_of(subject.roles, variant) for variant in variants])
    retitle(figure, f"TRC² is on the efficiency frontier in {on_front} of {len(measures)} text scores")
    figure.caption = (
        "Text scores of each task right after its own training against counted FLOPs. On the frontier: no other family "
        f"is as good in both. {FILLED} Whiskers: 95 % t-intervals. {scale_words(subject, variants)}"
    )
    return figure


def throughput_retention(subject: Subject) -> Figure:
    """Forgetting against measured speed, and against counted FLOPs."""
    variants, roles = needed_panel(subject), subject.roles
    figure = Figure("throughput_retention", " ", 2, columns=2, height=3.4)
    work = Measure("mflops", "training FLOPs", FLOPS_PER_TOKEN.of, factor=1e-6)
    speed = Measure("speed", "speed", SPEED.of, "higher", is_log=True, factor=1e-3)
    fronts = [_scatter(subject, axes, x, AUFC, variants) for axes, x in zip(figure.panels, (speed, work), strict=True)]
    for axes, words in zip(
        figure.panels, ("training speed (thousand tokens/s) →", "training MFLOPs per token ←"), strict=True
    ):
        axes.set_xlabel(words)
        axes.set_ylabel("forgetting, AUFC ↓ (nats)")
    add_legend(figure, roles, variants, [family_of(roles, variant) for variant in variants])
    names = [family_of(roles, variant) for variant in fronts[1]]
    retitle(figure, f"No family forgets less at fewer FLOPs than {listed(names)}")
    figure.caption = (
        "Forgetting against measured speed (left) and counted FLOPs (right). Speeds were measured on a shared machine, "
        f"where identical runs differ by 11–19 %. {FILLED} Whiskers: 95 % t-intervals. {scale_words(subject, variants)}"
    )
    return figure
