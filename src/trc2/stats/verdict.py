"""What a comparison allows to be said, as one word and as one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Literal

from trc2.stats.equivalence import tost
from trc2.stats.intervals import bounds, number
from trc2.stats.paired import Key, PairedDifference, paired_difference

ALPHA = 0.05  # of every test here


class Verdict(str, Enum):
    """The four things that can be said; absence of evidence is `undecided`, never `equivalent`."""

    better = "better"
    worse = "worse"
    equivalent = "equivalent"
    undecided = "undecided"


def decide(difference: PairedDifference, margin: float | None, *, direction: Literal["min", "max"]) -> Verdict:
    """The first side of a difference against the second, when lower ("min") or higher ("max") is better.

    1. `equivalent` only if `tost` within the margin has p < 0.05; without a margin (None) nothing is.
    2. `better` or `worse` only if the Holm-corrected p is below 0.05.
    3. Everything else is `undecided`.

    A difference that is certain and certainly within the margin is `equivalent`: it is there and does not matter.
    Each `equivalent` has its own error of 5 %; only 2. is corrected for the number of comparisons.
    """
    if margin is not None and tost(difference, margin) < ALPHA:
        return Verdict.equivalent
    if difference.p_holm < ALPHA:
        is_lower = difference.mean < 0
        return Verdict.better if is_lower == (direction == "min") else Verdict.worse
    return Verdict.undecided


def equivalent(
    a: Mapping[Key, float], b: Mapping[Key, float], margin: float, *, direction: Literal["min", "max"] = "min"
) -> Verdict:
    """One comparison of a with b, from runs to verdict. One of several belongs into `compare_all`, then `decide`."""
    return decide(paired_difference(a, b), margin, direction=direction)


def sentence(
    first: str,
    second: str,
    difference: PairedDifference,
    margin: float | None,
    *,
    direction: Literal["min", "max"],
) -> str:
    """The verdict in words, with the numbers it rests on.

    "TRC² is better: 0.012 lower than Mamba (95 % CI −0.020 to −0.004, n = 3, Holm p = 0.03)."
    """
    verdict = decide(difference, margin, direction=direction)
    if math.isnan(difference.mean):
        return f"not decided: a score of {first} or {second} is not a number (n = {difference.n})."
    size = number(abs(difference.mean), difference.interval)
    way = "lower" if difference.mean < 0 else "higher"
    found = f"{size} {way} than {second}" if difference.mean else f"the same as {second}"
    facts = ", ".join(_facts(difference, verdict, margin))
    if verdict in (Verdict.better, Verdict.worse):
        return f"{first} is {verdict.value}: {found} ({facts})."
    head = f"equivalent within ±{margin:.2g}" if verdict is Verdict.equivalent else "not decided"
    return f"{head}: {first} is {found} ({facts})."


def _facts(difference: PairedDifference, verdict: Verdict, margin: float | None) -> list[str]:
    """What stands in the parentheses: interval, p-values, what was left out; or why there are none."""
    facts = [bounds(difference.interval)]
    if difference.n > 1 and math.isnan(difference.spread.sd):
        facts = [f"all n = {difference.n} differences are equal: no spread to test against"]
    elif difference.n > 1:
        facts.append(f"Holm p {_p(difference.p_holm)}")
        if margin is not None and verdict in (Verdict.equivalent, Verdict.undecided):
            facts.append(f"equivalence p {_p(tost(difference, margin))}")
    if difference.unpaired:
        facts.append(f"{difference.unpaired} without a partner left out")
    return facts


def _p(value: float) -> str:
    """A p-value that never reads as 0, nor as 0.05 unless it is."""
    if math.isnan(value):
        return "unknown"
    if value < 0.001:
        return "< 0.001"
    rounded = round(value, 3)
    if rounded == ALPHA != value:
        rounded += 0.001 if value > ALPHA else -0.001
    return f"= {rounded:.3g}"
