"""Claims about other orders of the same tasks: section J of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trc2.report.claims.casting import Cast, missing_baselines
from trc2.report.claims.ledger import Claim, Contrast, rule
from trc2.report.claims.retention import ACCURACY_AREA, BLEU_AREA, bleu_unit, needs_trc2
from trc2.report.evidence import AREA, Arm, Measure
from trc2.report.names import FAMILIES
from trc2.stats.equal_runs import average_orders
from trc2.stats.moments import moments

Order = tuple[str, ...]
SHUFFLES = "Figures J.10 and J.11"
SEVERAL = "runs in several orders"


def shuffle_claims(cast: Cast) -> list[Claim]:
    wanted = math.factorial(len(cast.evidence.tasks))
    orders = cast.evidence.orders
    rivals = {name: arm for name, arm in cast.baselines(with_replay=False).items() if _shared(cast, arm)}
    missing = needs_trc2(cast)
    if len(orders) < 2:
        missing.append(SEVERAL)
    elif len(orders) < wanted:
        missing.append(f"all {wanted} orders (there are {len(orders)})")
    missing += missing_baselines(rivals, " in several orders")
    lacking = [
        f"{FAMILIES[name][0]} in the {len(orders)} orders that others have"
        for name, arm in rivals.items()
        if len(_shared(cast, arm)) < len(orders)
    ]
    return [
        _every_order(cast, rivals, [*missing, *lacking]),
        _averaged(cast, rivals, [*missing, *lacking], [AREA], "orders.mean",
                  "TRC²'s perplexity AUFC averaged over orders is below all baselines'", f"section J; {SHUFFLES}"),
        _spread(cast, rivals, [*missing, *lacking]),
        _averaged(cast, rivals, [*missing, *lacking], [BLEU_AREA, ACCURACY_AREA], "orders.text",
                  "Averaged over orders, TRC² also has the lowest BLEU and token-accuracy AUFC",
                  "section J; Figure J.12"),
    ]  # fmt: skip


def _shared(cast: Cast, rival: Arm) -> list[Order]:
    """The orders, beginning with the second, in which both were trained; none if only in the listed one."""
    if cast.trc2 is None:
        return []
    both = [order for order in cast.evidence.orders if cast.trc2.in_order(order) and rival.in_order(order)]
    return both if len(both) > 1 else []


def _by_order(arm: Arm, measure: Measure, order: Order) -> dict[int, float]:
    return {seed: value for (seed, _), value in arm.values(measure, order).items()}


def _every_order(cast: Cast, rivals: Mapping[str, Arm], missing: list[str]) -> Claim:
    contrasts = []
    for rival in rivals.values():
        assert cast.trc2 is not None
        for order in _shared(cast, rival):
            ours, theirs = _by_order(cast.trc2, AREA, order), _by_order(rival, AREA, order)
            found = Contrast(f"AUFC, {' → '.join(order)}", cast.trc2.title, rival.title, ours, theirs,
                             margin=cast.margin(AREA))  # fmt: skip
            contrasts.append(cast.told(found, cast.trc2, rival, is_keeping=True))
    return rule(
        "orders.every", "TRC² has the lowest perplexity AUFC in every order of the tasks",
        where=f"section J; {SHUFFLES}", paper="figure only (ratio best baseline / TRC² above 1 in every shuffle)",
        how="AUFC at the end, TRC² minus each baseline in each order, paired by seed.",
        contrasts=contrasts, missing=missing,
    )  # fmt: skip


def _whole(cast: Cast, arm: Arm, measure: Measure, orders: list[Order]) -> dict[tuple[int, Order], float]:
    """Values of those seeds that have all of the orders."""
    values = {key: value for key, value in arm.values(measure).items() if key[1] in orders}
    seeds = {seed for seed, _ in values if all((seed, order) in values for order in orders)}
    return {key: value for key, value in values.items() if key[0] in seeds}


def _averaged(
    cast: Cast, rivals: Mapping[str, Arm], missing: list[str], measures: list[Measure], key: str, statement: str,
    where: str,
) -> Claim:  # fmt: skip
    contrasts = []
    for measure in measures:
        for rival in rivals.values():
            assert cast.trc2 is not None
            orders = _shared(cast, rival)
            ours, theirs = (_whole(cast, arm, measure, orders) for arm in (cast.trc2, rival))
            found = Contrast(f"{measure.title}, mean of {len(orders)} orders", cast.trc2.title, rival.title,
                             average_orders(ours) if ours else {}, average_orders(theirs) if theirs else {},
                             measure.better, cast.margin(measure), scale=measure.name)  # fmt: skip
            contrasts.append(cast.told(found, cast.trc2, rival, is_keeping=True))
    return rule(
        key, statement, where=where, paper="figure only", contrasts=contrasts, missing=missing,
        how="Mean over the orders both have, by seed: orders of one seed share its weights, so seeds are counted.",
        notes=[bleu_unit(cast)] if BLEU_AREA in measures else [],
    )  # fmt: skip


def _spread(cast: Cast, rivals: Mapping[str, Arm], missing: list[str]) -> Claim:
    contrasts = []
    for rival in rivals.values():
        assert cast.trc2 is not None
        orders = _shared(cast, rival)
        ours, theirs = (_deviations(_whole(cast, arm, AREA, orders)) for arm in (cast.trc2, rival))
        about = f"standard deviation of AUFC over {len(orders)} orders"
        found = Contrast(about, cast.trc2.title, rival.title, ours, theirs)
        contrasts.append(cast.told(found, cast.trc2, rival, is_keeping=True))
    return rule(
        "orders.spread", "TRC²'s AUFC varies less with the order of the tasks than the baselines'",
        where=f"section J; {SHUFFLES}", paper="figure only (“much smaller”)",
        how="Standard deviation over orders by seed, TRC² minus each baseline.",
        contrasts=contrasts, missing=missing,
        notes=("A model that forgets less in every order also varies less; spread over mean is another question.",),
    )  # fmt: skip


def _deviations(values: Mapping[tuple[int, Order], float]) -> dict[int, float]:
    seeds = sorted({seed for seed, _ in values})
    return {seed: moments(value for key, value in values.items() if key[0] == seed).sd for seed in seeds}
