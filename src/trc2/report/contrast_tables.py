"""Tables that compare arms on equal seeds: parts against each other, an arm against all, plain against joint."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from trc2.report.evidence import AREA, FORGETTING, PRIMARY, SPEED, Arm, Measure, aa_differences, aa_margin
from trc2.report.grid import Column, Number, Row, Table
from trc2.report.names import PARTS
from trc2.report.paper_tables import INTERVALS, dagger_words
from trc2.report.scope import (
    LeftOut,
    Scope,
    Switches,
    factorial,
    joint_bound,
    mean_of,
    measured,
    plain_twin,
)
from trc2.stats.equivalence import decide
from trc2.stats.paired import PairedDifference, compare_all

DIRECTIONS = {"lower": "min", "higher": "max"}
FACTORIAL_MEASURES = (PRIMARY, AREA, FORGETTING, SPEED)


def factorial_table(scope: Scope) -> Table:
    """Thalamus × memory × replay: the mean of every combination."""
    cells = _needed_parts(scope)
    columns = [Column(part, is_head=True) for part in PARTS]
    columns += [Column("arm", is_head=True), Column("n")]
    columns += [Column(_with_unit(measure), better=measure.better) for measure in FACTORIAL_MEASURES]
    rows = []
    for parts, arm in cells.items():
        numbers = [scope.number(arm, measured(measure)) for measure in FACTORIAL_MEASURES]
        ticks = ["✓" if has else "✗" for has in parts]
        rows.append(Row((*ticks, scope.title(arm), len(scope.runs(arm)), *numbers)))
    caption = (
        f"TRC² {next(iter(cells.values())).size} with (✓) and without (✗) thalamus, memory and replay. "
        f"{INTERVALS} Bold: the best mean.{dagger_words(scope)}"
    )
    return Table("factorial", "Thalamus × memory × replay", caption, tuple(columns), tuple(rows))


def effects_table(scope: Scope) -> Table:
    """What each part does on average over the others, and what parts do together."""
    cells = _needed_parts(scope)
    if len(cells) < 8:
        raise LeftOut(f"needs all eight combinations of thalamus, memory and replay; there are {len(cells)}")
    measures = (PRIMARY, AREA)
    columns = [Column("effect of", is_head=True), Column("n")]
    columns += [Column(_with_unit(measure)) for measure in measures]
    rows = []
    for size in (1, 2, 3):
        for places in itertools.combinations(range(3), size):
            found = [contrast(scope, cells, measure, places) for measure in measures]
            name = " × ".join(PARTS[place] for place in places)
            rows.append(Row((name, len(found[0]), *(mean_of(values.values()) for values in found))))
    if not any(row.cells[1] for row in rows):
        raise LeftOut("needs a seed that all eight combinations have run")
    caption = (
        "Effects of the parts of TRC²: with minus without, averaged over the other two; products are interactions, how "
        "much a part's effect changes when another is there, halved for each. Below zero is better. Computed within "
        "each seed that all eight combinations share, then mean ± half width of the 95 % t-interval over seeds."
    )
    return Table("effects", "Effects of thalamus, memory and replay", caption, tuple(columns), tuple(rows))


def contrast(
    scope: Scope, cells: Mapping[Switches, Arm], measure: Measure, places: tuple[int, ...]
) -> dict[int, float]:
    """By seed: Σ over the eight cells of ±1 · value / 4, the sign being the product of the named switches'."""
    values = {parts: scope.values(arm, measured(measure)) for parts, arm in cells.items()}
    seeds = sorted(set.intersection(*(set(known) for known in values.values())))
    signs = {parts: math.prod(1 if parts[place] else -1 for place in places) for parts in cells}
    return {seed: sum(signs[parts] * values[parts][seed] for parts in cells) / 4 for seed in seeds}


def _needed_parts(scope: Scope) -> dict[Switches, Arm]:
    cells = factorial(scope)
    if len(cells) < 2:
        raise LeftOut("needs TRC² with and without some of thalamus, memory and replay")
    return cells


def _with_unit(measure: Measure) -> str:
    return f"{measure.title}, {measure.unit}" if measure.unit else measure.title


# ------------------------------------------------------------------------------------------------------ one against all


def comparisons(scope: Scope, measure: Measure) -> list[tuple[Arm, PairedDifference]]:
    """The reference minus every other competitor on equal seeds, p-values corrected for their number (Holm)."""
    reference = scope.values(scope.reference, measured(measure))
    others = {
        arm.title: values
        for arm in scope.competitors
        if arm.title != scope.reference.title
        if set(values := scope.values(arm, measured(measure))) & set(reference)
    }
    if not others:
        raise LeftOut("needs a second arm with a seed that the reference has too")
    found = compare_all(reference, others)
    return [(arm, found[arm.title]) for arm in scope.competitors if arm.title in found]


def margin(scope: Scope, measure: Measure) -> float | None:
    """What two arms may differ by and still be called equal, from A/A twins; None without them."""
    return aa_margin(repetition(scope, measure))


def repetition(scope: Scope, measure: Measure) -> list[float]:
    """What repeating alone does: the differences of all A/A pairs, by seed."""
    return aa_differences(scope.twins, lambda arm: scope.values(arm, measured(measure)))


def paired_table(scope: Scope, measure: Measure = PRIMARY) -> Table:
    """The reference against every other arm on equal seeds."""
    found, within = comparisons(scope, measure), margin(scope, measure)
    title = scope.reference.title
    columns = [Column("against", is_head=True), Column("pairs"), Column(f"{title} minus it, {measure.unit}")]
    columns += [Column("p"), Column("p (Holm)"), Column("verdict")]
    rows = []
    for arm, difference in found:
        half = (difference.interval.high - difference.interval.low) / 2
        numbers = (difference.n, Number(difference.mean, half, difference.n))
        chances = [None if math.isnan(p) else Number(p) for p in (difference.p, difference.p_holm)]
        direction = "min" if measure.better == "lower" else "max"
        verdict = decide(difference, within, direction=direction).value  # type: ignore[arg-type]
        if measure.is_keeping and (scope.unlearnt(arm) or scope.unlearnt(scope.reference)):
            verdict = "not learnt"  # so nothing could be forgotten
        rows.append(Row((scope.title(arm), *numbers, *chances, verdict)))
    equivalence = (
        f" Equivalent: within ±{within:.3g}, what A/A twins with other replay draws allow, by two one-sided tests."
        if within is not None
        else " No A/A twins set a margin, so nothing is called equivalent."
    )
    tested = sum(not math.isnan(difference.p) for _, difference in found)
    caption = (
        f"{title} against every other arm on equal seeds, {measure.title}, {measure.better} is better: mean difference "
        f"± half width of its 95 % t-interval, p-values of paired t-tests, corrected for the {tested} comparisons "
        f"that have one (Holm). Better and worse are said of {title}, at a corrected p below 0.05."
        f"{equivalence}{dagger_words(scope)}"
    )
    return Table(f"paired_{measure.name}", f"Paired: {measure.title}", caption, tuple(columns), tuple(rows))


def paired_area_table(scope: Scope) -> Table:
    return paired_table(scope, AREA)


# ------------------------------------------------------------------------------------------------------ plain to joint


def closed_table(scope: Scope) -> Table:
    """Which share of the distance from plain to joint an arm closes: 0 % is plain, 100 % is joint."""
    columns = [Column("arm", is_head=True), Column("n"), Column(_with_unit(PRIMARY), better="lower")]
    columns += [Column("closed (%)", better="higher"), Column("from"), Column("to")]
    rows = []
    for arm in scope.competitors:
        ends = closing_ends(scope, arm)
        if ends is not None:
            plain, joint = ends
            closed = mean_of(closed_shares(scope, arm, plain, joint).values(), 100.0)
            numbers = (len(scope.runs(arm)), scope.number(arm, measured(PRIMARY)), closed)
            rows.append(Row((scope.title(arm), *numbers, plain.title, joint.title)))
    if not rows:
        raise LeftOut("needs a joint run (stream.mode=joint) that ends better than a plain arm of the same backbone")
    caption = (
        f"Share of the distance from plain to joint training that an arm closes, in {PRIMARY.title}: 0 % is the plain "
        "arm on the same seeds, 100 % the joint one, both of the same backbone and size. The distance itself is that "
        f"of the means and counts as known.{_all_unequal_steps(scope)} {INTERVALS}{dagger_words(scope)}"
    )
    return Table("closed", "Distance from plain to joint", caption, tuple(columns), tuple(rows))


def unequal_steps(plain: Arm, joint: Arm) -> str:
    """That one end of a distance had more new text in a step than the other, in words; empty if not."""
    few, many = (arm.runs[0].config.train.tokens_per_step for arm in (plain, joint))
    return "" if few == many else f"A step of {joint.title} has {many:,} new tokens, one of {plain.title} {few:,}."


def _all_unequal_steps(scope: Scope) -> str:
    ends = {ends[1].title: ends for arm in scope.competitors if (ends := closing_ends(scope, arm)) is not None}
    return "".join(f" {words}" for pair in ends.values() if (words := unequal_steps(*pair)))


def closing_ends(scope: Scope, arm: Arm) -> tuple[Arm, Arm] | None:
    """The plain and the joint arm that an arm is measured between; none if the joint one is no better."""
    plain, joint = plain_twin(scope, arm), joint_bound(scope, arm)
    if plain is None or joint is None or not distance(scope, plain, joint) > 0:
        return None
    return plain, joint


def distance(scope: Scope, plain: Arm, joint: Arm) -> float:
    """From plain to joint training, between the means over seeds; NaN if one of them has no score."""
    far, near = (scope.number(arm, measured(PRIMARY)) for arm in (plain, joint))
    return math.nan if far is None or near is None else far.value - near.value


def closed_shares(scope: Scope, arm: Arm, plain: Arm, joint: Arm) -> dict[int, float]:
    """By seed: (plain − arm) / (mean of plain − mean of joint)."""
    ours, theirs = scope.values(arm, measured(PRIMARY)), scope.values(plain, measured(PRIMARY))
    nats = distance(scope, plain, joint)
    return {seed: (theirs[seed] - ours[seed]) / nats for seed in ours if seed in theirs}
