"""Inside a run of TRC²: what the hippocampus writes, surprise and threshold, auxiliary losses."""

from __future__ import annotations

import json

from studies.paper import traces
from studies.paper.figures.drawing import (
    Subject,
    average,
    colour_of,
    draw_band,
    scale_words,
    signal_curve,
    standard_error,
)
from studies.paper.roles import Roles
from trc2.report.figures import draw_tasks
from trc2.report.tables import NotWritten
from trc2.system.plot_style import COLOURS, Figure, ink, label, label_ends, plain_log_ticks
from trc2.verify.figure import draw

WRITES = (
    ("hippocampus/surprise_mean", "mean surprise"),
    ("hippocampus/surprise_max", "largest surprise"),
    ("hippocampus/threshold", "write threshold τ"),
    ("hippocampus/keep_fraction", "written ÷ candidates"),
    ("hippocampus/raw_fraction", "above τ before its update"),
    ("hippocampus/writes", "writes per step"),
)
LOSSES = (
    ("train/loss_td", "critic, temporal difference"),
    ("train/loss_replay", "replay"),
    ("train/loss_load_balance", "router, load balance"),
)
PAPER_SAYS = (
    "The paper (Figure E.3): surprise and threshold are highest right after a new task begins and then decay within "
    "the task, most clearly at the last switch, and after warm-up the keep and raw write fractions are usually 0.1–0.4."
)


def with_memory(roles: Roles) -> list[str]:
    """Configurations whose logs have a write threshold, TRC² first."""
    found = [
        variant
        for variant in roles.table.variants.index
        if any(run.series("train", "hippocampus/threshold")[1] for run in roles.runs(variant))
    ]
    if not found:
        raise NotWritten("needs runs with a memory")
    return sorted(found, key=lambda variant: variant != roles.trc2)


def _main(roles: Roles) -> str:
    return with_memory(roles)[0]


def _draw(subject: Subject, name: str, title: str, signals: tuple[tuple[str, str], ...], variant: str) -> Figure:
    """One panel per signal, the mean over seeds with its standard error."""
    roles = subject.roles
    runs = roles.runs(variant)
    figure = Figure(name, title, len(signals), height=2.3)
    for place, (axes, (path, words)) in enumerate(zip(figure.panels, signals, strict=True)):
        band = average([signal_curve(run, path) for run in runs], standard_error)
        if band is not None and band.steps:
            draw_band(axes, band, colour_of(roles, variant))
            is_loss = path.startswith("train/")
            if is_loss and min(band.middle) > 0 and max(band.middle) > 5 * min(band.middle):
                axes.set_yscale("log")
                plain_log_ticks(axes.yaxis)
            elif max(band.middle) - min(band.middle) < 0.05 * max(map(abs, band.middle), default=1.0):
                axes.set_ylim(0, 1.2 * max(band.middle) or 1.0)
        else:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=ink("grey"))
        draw_tasks(axes, runs[0].spans, roles.table.task_titles, runs[0].end)
        axes.set_title(label(words), pad=14)
        if place < len(signals) - 3:
            axes.set_xlabel("")
    return figure


def hippocampus(subject: Subject) -> Figure:
    """The paper's six panels of write dynamics."""
    roles = subject.roles
    variant = _main(roles)
    kept = roles.traced(traces.share_of("keep_fraction", lambda value: value >= 1), variant)
    share = sum(kept.values()) / len(kept) if kept else 0.0
    title = f"{roles.title(variant)} writes every candidate at {share:.0%} of the steps after the start-up"
    figure = _draw(subject, "hippocampus", title, WRITES, variant)
    figure.caption = f"Means over runs with bands of one standard error. {PAPER_SAYS} {scale_words(subject, [variant])}"
    return figure


def auxiliary_losses(subject: Subject) -> Figure:
    roles = subject.roles
    variant = _main(roles)
    falls = roles.traced(traces.decades(), variant)
    size = sum(falls.values()) / len(falls) if falls else 0.0
    title = f"Within a task the critic's loss falls by a factor of {10**size:.1f} on average"
    figure = _draw(subject, "auxiliary_losses", title, LOSSES, variant)
    figure.caption = (
        f"Auxiliary losses of {roles.title(variant)}, means over runs with bands of one standard error. The paper "
        "(Figure E.4): the critic's loss falls by orders of magnitude within each task, the replay loss is largest "
        f"early in the first, the router loss stays bounded. {scale_words(subject, [variant])}"
    )
    return figure


def dynamics(subject: Subject) -> Figure:
    """Surprise, threshold and write fraction over the stream, for every configuration with a memory (up to six)."""
    roles = subject.roles
    variants = with_memory(roles)[: len(COLOURS)]
    signals = (WRITES[0], WRITES[2], WRITES[3])
    figure = Figure("dynamics", _switch_finding(roles, variants[0]), len(signals), columns=1, height=2.0)
    for axes, (path, words) in zip(figure.panels, signals, strict=True):
        ends = []
        for variant, colour in zip(variants, COLOURS, strict=False):
            band = average([signal_curve(run, path) for run in roles.runs(variant)], standard_error)
            if band is not None and band.steps:
                draw_band(axes, band, colour, is_main=variant == variants[0])
                ends.append((band.middle[-1], roles.title(variant), colour))
        run = roles.runs(variants[0])[0]
        is_first = axes is figure.panels[0]
        draw_tasks(axes, run.spans, roles.table.task_titles if is_first else {}, run.end)
        axes.set_ylabel(label(words))
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        if not is_first:
            for text in list(axes.texts):
                text.remove()
        if axes is not figure.panels[-1]:
            axes.set_xlabel("")
        if is_first:
            label_ends(axes, ends)
    skipped = len(with_memory(roles)) - len(variants)
    more = f" {skipped} more configurations with a memory are not drawn." if skipped else ""
    clip = roles.traced(traces.clipped_share, variants[0])
    at_clip = (
        f" The largest surprise is at its clip at {sum(clip.values()) / len(clip):.0%} of the steps." if clip else ""
    )
    figure.caption = (
        f"Means over runs, band of one standard error for {roles.title(variants[0])}.{at_clip} {PAPER_SAYS}{more} "
        f"{scale_words(subject, variants)}"
    )
    return figure


def _switch_finding(roles: Roles, variant: str) -> str:
    """Whether surprise rises or falls at the switches of tasks."""
    jumps = roles.traced(traces.jump("surprise_mean"), variant)
    if not jumps:
        return f"Surprise, threshold and writes of {roles.title(variant)}"
    size = sum(jumps.values()) / len(jumps)
    moves = "rises" if size > 0 else "falls"
    ups = sum(value > 0 for value in jumps.values())
    return f"Mean surprise {moves} by {abs(size):.3f} when the task changes; it rises in {ups} of {len(jumps)} seeds"


def causality(subject: Subject) -> Figure:
    """The checks of causality and state, from verify.json, which `trc2 verify` writes."""
    if subject.verify is None:
        raise NotWritten("needs verify.json: run `trc2 verify --out results/verify`")
    return draw(json.loads(subject.verify.read_text(encoding="utf-8")))
