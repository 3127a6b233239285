from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trc2.errors import UserError
from trc2.stats.ranks import mean_ranks, ranks


def test_equal_scores_share_the_mean_of_their_places() -> None:
    scores = {"a": 3.0, "b": 1.0, "c": 3.0, "d": 7.0}
    assert ranks(scores, "min") == {"a": 2.5, "b": 1, "c": 2.5, "d": 4}
    assert ranks(scores, "max") == {"a": 2.5, "b": 4, "c": 2.5, "d": 1}


def test_a_broken_score_has_no_place_and_moves_nobody() -> None:
    found = ranks({"a": 2.0, "broken": math.nan, "b": 1.0, "lost": math.inf}, "min")
    assert math.isnan(found.pop("broken"))
    assert found == {"b": 1, "a": 2, "lost": 3}


@given(st.dictionaries(st.text(max_size=2), st.integers(-3, 3).map(float), min_size=1, max_size=8))
def test_places_add_up_whatever_the_ties(scores: dict[str, float]) -> None:
    n = len(scores)
    found = ranks(scores, "min")
    assert sum(found.values()) == n * (n + 1) / 2
    assert {name: n + 1 - place for name, place in found.items()} == ranks(scores, "max")


def test_mean_ranks_over_measures_of_either_direction() -> None:
    table = {"perplexity": {"a": 10.0, "b": 20.0, "c": 30.0}, "bleu": {"c": 0.3, "a": 0.2, "b": 0.2}}
    assert mean_ranks(table, {"perplexity": "min", "bleu": "max"}) == {"a": 1.75, "b": 2.25, "c": 2.0}
    table["bleu"]["b"] = math.nan
    assert math.isnan(mean_ranks(table, {"perplexity": "min", "bleu": "max"})["b"])


def test_measures_of_other_names_or_without_direction_are_refused() -> None:
    with pytest.raises(UserError, match="list of names"):
        mean_ranks({"x": {"a": 1.0}, "y": {"a": 1.0, "b": 2.0}}, {"x": "min", "y": "min"})
    with pytest.raises(UserError, match="'x' has no direction"):
        mean_ranks({"x": {"a": 1.0}}, {})
    with pytest.raises(UserError, match="0 measures"):
        mean_ranks({}, {})
