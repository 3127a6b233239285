"""What may be averaged: runs of equal length, seeds with equal orders."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from trc2.errors import UserError, brief
from trc2.stats.moments import moments

T = TypeVar("T")
Seed = TypeVar("Seed", bound=Hashable)
Order = TypeVar("Order", bound=Hashable)


def require_equal(values: Mapping[str, T], what: str = "length") -> T:
    """The one value all runs share; names the odd run otherwise, since a truncated run would bend an average.

    The odd one is whoever differs from the value most runs have; of two runs it is the second.
    """
    if not values:
        raise UserError(f"There are 0 runs whose {what} could be compared: select at least 1.")
    counts = [sum(1 for other in values.values() if other == value) for value in values.values()]
    usual, common = list(values.items())[counts.index(max(counts))]
    odd = {name: value for name, value in values.items() if value != common}
    if odd:
        told = ", ".join(f"{brief(repr(value), 60)} in '{name}'" for name, value in list(odd.items())[:3])
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise UserError(
            f"The {what} is {told}{more}, but {brief(repr(common), 60)} in '{usual}': only equal runs are averaged; "
            f"finish {'it' if len(odd) == 1 else 'them'} or leave {'it' if len(odd) == 1 else 'them'} out."
        )
    return common


def average_orders(runs: Mapping[tuple[Seed, Order], float]) -> dict[Seed, float]:
    """One number per seed, the mean over its task orders, so that seeds are what is counted.

    Five orders of one seed share its initial weights: as five independent pairs they would make a test too sure.
    Every seed must have the same orders.
    """
    orders: dict[Seed, set[Order]] = {}
    for seed, order in runs:
        orders.setdefault(seed, set()).add(order)
    require_equal({f"seed {seed}": sorted(map(str, known)) for seed, known in orders.items()}, "list of orders")
    return {seed: moments(runs[seed, order] for order in known).mean for seed, known in orders.items()}
