from __future__ import annotations

import math

import pytest

from trc2.errors import UserError
from trc2.stats.intervals import average_orders, require_equal


def test_equal_runs_share_their_value() -> None:
    assert require_equal({"a": 22000, "b": 22000}) == 22000
    assert require_equal({"a": [0, 10], "b": [0, 10]}, "list of steps") == [0, 10]


def test_the_odd_run_is_named_wherever_it_stands() -> None:
    for names in (("odd", "a", "b"), ("a", "odd", "b"), ("a", "b", "odd")):
        with pytest.raises(
            UserError, match=r"The number of steps is 800 in 'odd', but 1000 in 'a': .* finish it or leave"
        ):
            require_equal({name: 800 if name == "odd" else 1000 for name in names}, "number of steps")


def test_many_odd_runs_and_long_values_stay_one_sentence() -> None:
    odd = {f"run {i}": list(range(i)) for i in range(100)}
    with pytest.raises(UserError, match="and 96 more") as caught:
        require_equal(odd)
    assert len(str(caught.value)) < 500


def test_no_runs_are_refused() -> None:
    with pytest.raises(UserError, match="0 runs"):
        require_equal({})


def test_orders_are_averaged_within_each_seed() -> None:
    assert average_orders({(1, "ab"): 1.0, (1, "ba"): 3.0, (2, "ba"): 5.0, (2, "ab"): 5.0}) == {1: 2.0, 2: 5.0}
    assert math.isnan(average_orders({(1, "ab"): 1.0, (1, "ba"): math.nan})[1])


def test_seeds_with_unequal_orders_are_refused() -> None:
    with pytest.raises(UserError, match=r"The list of orders is \['ab'\] in 'seed 3'"):
        average_orders({(1, "ab"): 1.0, (1, "ba"): 3.0, (2, "ab"): 5.0, (2, "ba"): 1.0, (3, "ab"): 5.0})
