"""Arms beside each other: intervals of every score, differences to a reference, the best of each family, a radar."""

from __future__ import annotations

import math
from typing import Any

from trc2.report.contrast_tables import closed_shares, closing_ends, comparisons, repetition
from trc2.report.evidence import AREA, PRIMARY, Arm, Measure
from trc2.report.grid import Number
from trc2.report.names import Family
from trc2.report.old_figures import label
from trc2.report.paper_tables import checkpoint_titles
from trc2.report.plots.against_size import FILLED, score_label, text_choice, whiskers
from trc2.report.plots.canvas import GREY, Picture, Sheet
from trc2.report.plots.ticks import linear_ticks, log_ticks, should_be_log, tick_words
from trc2.report.scope import METRIC_TITLES, LeftOut, Reading, Scope, area_at, boundary_score, mean_of
from trc2.stats.equivalence import noise_floor
from trc2.stats.ranks import mean_ranks

ROW = 0.17  # inches of one arm in a list


def boundary_readings(scope: Scope) -> list[tuple[str, str, Reading, float, str]]:
    """(title, axis label, reading, scale, direction) of the paper's task-boundary scores: perplexity, then text."""
    found: list[tuple[str, str, Reading, float, str]] = []
    for task in scope.evidence.tasks:
        name = scope.task_titles[task]
        found.append((f"{name} PPL", score_label("perplexity"), boundary_score("perplexity", task), 1.0, "min"))
    for task in scope.evidence.tasks:
        choice = text_choice(scope, task)
        if choice is not None:
            metric, scale = choice
            title = f"{scope.task_titles[task]} {METRIC_TITLES.get(metric, metric)}"
            found.append((title, score_label(metric), boundary_score(metric, task), scale, "max"))
    return found


def forest_of_scores(scope: Scope) -> Picture:
    """Every arm's task-boundary scores with 95 % intervals."""
    readings, arms = boundary_readings(scope), scope.competitors
    if len(arms) < 2:
        raise LeftOut("needs at least two arms")
    columns = min(3, max(1, math.ceil(len(readings) / 2)))
    rows = math.ceil(len(readings) / columns)
    sheet = Sheet(scope, rows, columns, size=(3.4, ROW * len(arms) + 0.9))
    for place, axes in enumerate(sheet.panels):
        if place >= len(readings):
            axes.set_visible(False)
            continue
        title, words, of, scale, _ = readings[place]
        numbers = [scope.number(arm, of, scale) for arm in arms]
        _list_arms(sheet, axes, arms, named=place % columns == 0)
        for height, (arm, number) in enumerate(zip(arms, numbers, strict=True)):
            if number is not None and math.isfinite(number.value):
                sheet.point(axes, arm, number, float(-height), size=4.5)
        axes.set_title(label(title).strip())
        axes.set_xlabel(words)
        _across(axes, [number.value for number in numbers if number is not None and math.isfinite(number.value)])
    words = whiskers(scope)
    caption = f"Task-boundary scores of every arm. {words}"
    return sheet.finish("forest_scores", caption, f"{scope.data_words(arms)}. {words}")


def _across(axes: Any, values: list[float]) -> None:
    axes.margins(x=0.08)
    if should_be_log(values):
        log_ticks(axes, "x")
    else:
        linear_ticks(axes.xaxis)
        tick_words(axes.xaxis)


def _list_arms(sheet: Sheet, axes: Any, arms: list[Arm], *, named: bool = True) -> None:
    """Arms as the rows of a panel, from top to bottom, with pale lines to read along."""
    heights = [-float(place) for place in range(len(arms))]
    axes.set_yticks(heights, [sheet.words(arm, 34) for arm in arms] if named else [""] * len(arms))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-len(arms) + 0.4, 0.6)
    axes.spines["left"].set_visible(False)
    for height in heights:
        axes.axhline(height, color="#ececec", linewidth=0.6, zorder=0)


def forest_of_differences(scope: Scope) -> Picture:
    """The reference minus every other arm on equal seeds, in the primary measure and in the forgetting area."""
    found = []
    for measure in (PRIMARY, AREA):
        try:
            found.append((measure, comparisons(scope, measure), repetition_band(scope, measure)))
        except LeftOut:
            continue
    if not found:
        raise LeftOut("needs a second arm with a seed that the reference has too")
    most = max(len(differences) for _, differences, _ in found)
    sheet = Sheet(scope, 1, len(found), size=(4.4, ROW * most + 1.1))
    for axes, (measure, differences, within) in zip(sheet.panels, found, strict=True):
        _draw_differences(sheet, axes, measure, differences, within)
    title = scope.reference.title
    is_tested = any(difference.n > 1 for _, differences, _ in found for _, difference in differences)
    words = (
        "Whiskers: 95 % t-intervals over pairs of equal seed. Bold: Holm-corrected p < 0.05." if is_tested else FILLED
    )
    if any(within is not None for _, _, within in found):
        words += " Grey: what one pair of equal runs may differ by, from A/A twins (95 %)."
    caption = f"{title} minus every other arm on equal seeds; left of 0 {title} is better. {words}"
    return sheet.finish("forest_paired", caption, f"{scope.data_words(scope.competitors)}. {words}")


def repetition_band(scope: Scope, measure: Measure) -> float | None:
    """Beyond it repetition alone does not explain the difference of one pair; None without A/A twins.

    With one pair nothing else says which points to take seriously, and with several it is on the careful side.
    """
    differences = repetition(scope, measure)
    return noise_floor(differences) if any(differences) and len(differences) > 1 else None


def _draw_differences(sheet: Sheet, axes: Any, measure: Measure, differences: Any, within: float | None) -> None:
    arms = [arm for arm, _ in differences]
    _list_arms(sheet, axes, arms)
    axes.axvline(0.0, color=GREY, linewidth=0.9, zorder=1)
    if within is not None and math.isfinite(within):
        axes.axvspan(-within, within, color="#dddddd", linewidth=0, zorder=0)
    for height, (arm, difference) in enumerate(differences):
        half = (difference.interval.high - difference.interval.low) / 2
        if math.isfinite(difference.mean):
            sheet.point(axes, arm, Number(difference.mean, half, difference.n), float(-height), size=4.5)
        is_told = not measure.is_keeping or not sheet.scope.unlearnt(arm)  # what was not learnt cannot be forgotten
        if difference.p_holm < 0.05 and is_told:
            axes.get_yticklabels()[height].set_fontweight("bold")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.05 * (high - low)), max(high, 0.05 * (high - low)))
    linear_ticks(axes.xaxis)
    tick_words(axes.xaxis)
    axes.set_title(label(measure.title, 60).strip(), fontsize=8)
    axes.set_xlabel(f"{label(sheet.scope.reference.title).strip()} minus it ({measure.unit})")


def best_by_family(scope: Scope) -> Picture:
    """The smallest forgetting area of each family at the two checkpoints."""
    places = checkpoint_titles(scope)
    if not places:
        raise LeftOut("needs runs of at least two tasks one after another")
    families = list(dict.fromkeys(arm.family for arm in scope.competitors))
    if len(families) < 2:
        raise LeftOut("needs at least two families of backbones")
    sheet = Sheet(scope, 1, len(places), size=(4.0, 0.26 * len(families) + 1.2))
    for axes, (place, title) in zip(sheet.panels, places.items(), strict=True):
        for height, family in enumerate(families):
            best = _best_of(scope, family, area_at("perplexity", place))
            if best is None:
                continue
            arm, number = best
            half = number.half if math.isfinite(number.half) else None
            axes.barh(
                -height, number.value, 0.7, color=family.colour if arm.replays else "white", edgecolor=family.colour,
                xerr=half, error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
            )  # fmt: skip
            right = number.value + (half or 0.0)
            axes.annotate(
                f" {sheet.words(arm, 38)}, {str(number).split(' ')[0]}", (right, -height), va="center",
                fontsize=6.5, color=GREY, xytext=(2, 0), textcoords="offset points",
            )  # fmt: skip
        axes.set_yticks([-float(place) for place in range(len(families))], [label(f.title).strip() for f in families])
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        axes.set_xlabel("forgetting area (AUFC, nats)")
        axes.set_xlim(0, axes.get_xlim()[1] * 2.1)  # room for the names
        linear_ticks(axes.xaxis)
    words = whiskers(scope)
    counts = {family.title: sum(arm.family == family for arm in scope.competitors) for family in families}
    words += " Chosen among " + ", ".join(f"{count} of {title}" for title, count in counts.items()) + "."
    caption = f"The arm with the smallest forgetting area of each family. {words}"
    return sheet.finish("best_aufc", caption, f"{scope.data_words(scope.competitors)}. {words}")


def _best_of(scope: Scope, family: Family, of: Reading) -> tuple[Arm, Number] | None:
    known = [(arm, number) for arm in scope.competitors if arm.family == family and (number := scope.number(arm, of))]
    known = [(arm, number) for arm, number in known if not scope.unlearnt(arm)] or known
    finite = [(arm, number) for arm, number in known if math.isfinite(number.value)]
    return min(finite, key=lambda entry: entry[1].value) if finite else None


def radar(scope: Scope) -> Picture:
    """The arm of best mean rank of each family on all task-boundary scores, each axis from worst to best."""
    readings = boundary_readings(scope)
    if len(readings) < 3:
        raise LeftOut("needs at least three scores, so two tasks with a text score each")
    table = {title: _means(scope, of, scale) for title, _, of, scale, _ in readings}
    whole = [arm for arm in scope.competitors if all(math.isfinite(table[title][arm.title]) for title in table)]
    families = list(dict.fromkeys(arm.family for arm in whole))
    if len(families) < 2:
        raise LeftOut("needs at least two families with all task-boundary scores")
    table = {title: {arm.title: row[arm.title] for arm in whole} for title, row in table.items()}
    directions = {title: direction for title, _, _, _, direction in readings}
    places = mean_ranks(table, directions)  # type: ignore[arg-type]
    chosen = [min((a for a in whole if a.family == f), key=lambda arm: places[arm.title]) for f in families]
    sheet = Sheet(scope, 1, 1, size=(5.2, 3.6))
    sheet.panels[0].remove()
    axes: Any = sheet.figure.add_subplot(projection="polar")
    angles = [2 * math.pi * place / len(readings) for place in range(len(readings))]
    scale = [arm for arm in chosen if not scope.unlearnt(arm)] or chosen  # who learnt nothing would set every worst
    for arm in chosen:
        radii = [_radius(table[title], arm, scale, directions[title]) for title in table]
        look = sheet.looks[arm.title]
        axes.plot(
            [*angles, angles[0]], [*radii, radii[0]], linestyle=look.line, linewidth=1.4, markersize=4, clip_on=False,
            zorder=3, **look.markers,
        )  # fmt: skip
        if arm is chosen[0]:
            axes.fill([*angles, angles[0]], [*radii, radii[0]], color=look.colour, alpha=0.12, linewidth=0)
        sheet.key_arm(arm, line=True)
    axes.set_xticks(angles, [label(title).strip() for title in table])
    axes.tick_params(axis="x", pad=10)
    axes.set_ylim(0, 1.0)
    axes.set_yticks([0.1, 0.55, 1.0], ["worst", "", "best"], fontsize=6.5, color=GREY)
    axes.set_rlabel_position(90 / len(readings))
    axes.spines["polar"].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.7)
    words = "Each axis runs from the worst (inside) to the best (outside) of those that learnt: distances mean little."
    caption = f"One arm per family, the one of best mean rank over all task-boundary scores. {words}"
    return sheet.finish("radar", caption, f"{scope.data_words(chosen)}. {words}")


def _means(scope: Scope, of: Reading, scale: float) -> dict[str, float]:
    numbers = {arm.title: scope.number(arm, of, scale) for arm in scope.competitors}
    return {title: math.nan if number is None else number.value for title, number in numbers.items()}


def _radius(row: dict[str, float], arm: Arm, scale: list[Arm], direction: str) -> float:
    """From 0.1 (the worst of those that set the scale) to 1 (the best), never beyond; all equal are in the middle."""
    values = [row[other.title] for other in scale]
    if max(values) == min(values):
        return 0.55
    share = min(1.0, max(0.0, (row[arm.title] - min(values)) / (max(values) - min(values))))
    return 0.1 + 0.9 * (1 - share if direction == "min" else share)


def closed_distances(scope: Scope) -> Picture:
    """The share of the distance from plain to joint that every arm closes."""
    found = []
    for arm in scope.competitors:
        ends = closing_ends(scope, arm)
        if ends is not None and arm.title != ends[0].title:
            number = mean_of(closed_shares(scope, arm, *ends).values(), 100.0)
            if number is not None and math.isfinite(number.value):
                found.append((arm, number))
    if not found:
        raise LeftOut("needs a joint run (stream.mode=joint) that ends better than a plain arm of the same backbone")
    sheet = Sheet(scope, 1, 1, size=(6.0, ROW * len(found) + 1.0))
    (axes,) = sheet.panels
    _list_arms(sheet, axes, [arm for arm, _ in found])
    for height, (arm, number) in enumerate(found):
        sheet.point(axes, arm, number, float(-height), size=5)
    for place, words in ((0.0, "plain"), (100.0, "joint")):
        axes.axvline(place, color=GREY, linewidth=0.9, zorder=1)
        axes.text(place, 1.0, words, transform=axes.get_xaxis_transform(), ha="center", va="bottom", color=GREY)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -6), max(high, 106))
    linear_ticks(axes.xaxis)
    axes.set_xlabel("share of the distance from plain to joint that is closed (%)")
    words = f"{whiskers(scope)} The distance itself counts as known."
    caption = f"Between plain and joint training, in {PRIMARY.title}. {words}"
    return sheet.finish("closed", caption, f"{scope.data_words([arm for arm, _ in found])}. {words}")
