"""Places in several measures at once, for choosing a configuration and for drawing a radar."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from trc2.errors import UserError
from trc2.stats.intervals import moments, require_equal

Direction = Literal["min", "max"]  # which end of a measure is better


def ranks(scores: Mapping[str, float], direction: Direction) -> dict[str, float]:
    """Places by one measure, 1 for the best: 1 + (how many are better) + (how many others are equal) / 2.

    Equal scores share the mean of their places. A score that is NaN has no place (NaN), and the others stand as if it
    came last; infinity is a score like any other.
    """
    sign = 1 if direction == "min" else -1
    return {
        name: math.nan
        if math.isnan(score)
        else 1 + sum((sign * o < sign * score) + (o == score) / 2 for o in scores.values()) - 0.5
        for name, score in scores.items()
    }


def mean_ranks(table: Mapping[str, Mapping[str, float]], directions: Mapping[str, Direction]) -> dict[str, float]:
    """The mean place of each name over several measures, table[measure][name]; lower is better.

    A mean rank has no unit and hides distances: second by a hair and by a mile are both second. Every measure must have
    the same names. A name without a place in one measure has no mean (NaN).
    """
    if not table:
        raise UserError("There are 0 measures to rank by: name at least 1.")
    if missing := [measure for measure in table if measure not in directions]:
        raise UserError(f"The measure '{missing[0]}' has no direction: say 'min' or 'max' for it.")
    require_equal({measure: sorted(scores) for measure, scores in table.items()}, "list of names")
    places = [ranks(scores, directions[measure]) for measure, scores in table.items()]
    return {name: moments(place[name] for place in places).mean for name in places[0]}
