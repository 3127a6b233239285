"""Claims about other orders of the same tasks: section J of the paper, and what it leaves open there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from studies.paper.casting import Cast, Order, lesion_name, missing_baselines
from studies.paper.ledger import Claim, Contrast, rule
from studies.paper.retention import ACCURACY_AREA, BLEU_AREA, bleu_unit, just_learnt, needs_trc2, never_above
from trc2.report.evidence import AREA, PRIMARY, Arm, Measure
from trc2.report.names import FAMILIES
from trc2.stats.intervals import Moments, average_orders, moments

SHUFFLES = "Figures J.10 and J.11"
SEVERAL = "runs in several orders"
BY_SEED = "Mean over the orders both have, by seed: orders of one seed share its weights, so seeds are counted."


@dataclass(frozen=True)
class Shuffles:
    """One arm beside the baselines that met the tasks in several orders as it did, and what is missing for all."""

    cast: Cast
    ours: Arm | None
    rivals: Mapping[str, Arm]
    missing: tuple[str, ...]

    @classmethod
    def of(
        cls, cast: Cast, ours: Arm | None, baselines: Mapping[str, Arm], absent: Sequence[str], what: str
    ) -> Shuffles:
        """`absent` is said where there is no such arm; `what` the baselines are, in words."""
        orders, wanted = cast.evidence.orders, math.factorial(len(cast.evidence.tasks))
        rivals = {name: arm for name, arm in baselines.items() if ours and shared_orders(cast, ours, arm)}
        missing = list(absent) if ours is None else []
        if len(orders) < 2:
            missing.append(SEVERAL)
        elif len(orders) < wanted:
            missing.append(f"all {wanted} orders (there are {len(orders)})")
        missing += missing_baselines(rivals, f"{what} in several orders")
        missing += [
            f"{FAMILIES[name][0]}{what} in the {len(orders)} orders that others have"
            for name, arm in rivals.items()
            if ours and len(shared_orders(cast, ours, arm)) < len(orders)
        ]
        return cls(cast, ours, rivals, tuple(missing))

    def pairs(self) -> Iterator[tuple[Arm, Arm, list[Order]]]:
        """Ours, a rival, and the orders in which both were trained."""
        for rival in self.rivals.values():
            assert self.ours is not None
            yield self.ours, rival, shared_orders(self.cast, self.ours, rival)

    def in_each(self, measure: Measure, about: str) -> list[Contrast]:
        """Every pair in every order."""
        found = []
        for ours, rival, orders in self.pairs():
            for order in orders:
                a, b = (self.cast.seeds(arm, measure, order) for arm in (ours, rival))
                contrast = Contrast(f"{about}, {' → '.join(order)}", ours.title, rival.title, a, b, measure.better,
                                    self.cast.margin(measure), is_one_of=True)  # fmt: skip
                found.append(self.cast.told(contrast, ours, rival, measure=measure, orders=[order]))
        return found

    def averaged(self, measure: Measure) -> list[Contrast]:
        """Every pair, by the mean over orders of each seed that has them all."""
        found = []
        for ours, rival, orders in self.pairs():
            a, b = (average_orders(values) if (values := _whole(arm, measure, orders)) else {} for arm in (ours, rival))
            margin = self.cast.margin(measure)
            if margin is not None:
                margin /= math.sqrt(len(orders))  # so much closer means of several runs repeat
            contrast = Contrast(f"{measure.title}, mean of {len(orders)} orders", ours.title, rival.title, a, b,
                                measure.better, margin, scale=measure.name, is_one_of=True)  # fmt: skip
            found.append(self.cast.told(contrast, ours, rival, measure=measure, orders=orders))
        return found


def shuffle_claims(cast: Cast) -> list[Claim]:
    shuffles = Shuffles.of(cast, cast.trc2, cast.baselines(with_replay=False), needs_trc2(cast), "")
    return [
        _every_order(shuffles),
        _throughout(shuffles),
        _averaged(shuffles, [AREA], "orders.mean",
                  "TRC²'s perplexity AUFC averaged over orders is below all baselines'", f"section J; {SHUFFLES}"),
        _spread(shuffles),
        _averaged(shuffles, [BLEU_AREA, ACCURACY_AREA], "orders.text",
                  "Averaged over orders, TRC² also has the lowest BLEU and token-accuracy AUFC",
                  "section J; Figure J.12"),
        _boundaries(shuffles),
    ]  # fmt: skip


def orders_left_open(cast: Cast) -> list[Claim]:
    """The paper calls its order robustness architectural; its baselines never replayed."""
    with_replay = Shuffles.of(
        cast, cast.trc2, cast.baselines(with_replay=True), needs_trc2(cast), " with controlled replay"
    )
    without = Shuffles.of(
        cast, cast.lesion("replay"), cast.baselines(with_replay=False), [f"runs of {lesion_name('replay')}"], ""
    )
    return [
        rule(
            key, statement, where="section J calls the gain architectural; not tested", paper="no such arm",
            how=BY_SEED, contrasts=shuffles.averaged(AREA), beside=shuffles.averaged(PRIMARY), missing=shuffles.missing,
        )
        for key, statement, shuffles in (
            ("open.orders_replay", "With the same controlled replay on both sides TRC² forgets least, averaged over "
             "orders", with_replay),
            ("open.orders_backbone", "Without replay on either side TRC² forgets least, averaged over orders", without),
        )
    ]  # fmt: skip


def shared_orders(cast: Cast, ours: Arm, rival: Arm) -> list[Order]:
    """The orders in which both were trained, if there are several."""
    both = [order for order in cast.evidence.orders if ours.in_order(order) and rival.in_order(order)]
    return both if len(both) > 1 else []


def _whole(arm: Arm, measure: Measure, orders: list[Order]) -> dict[tuple[int, Order], float]:
    """Values of those seeds that have all of the orders."""
    values = {key: value for key, value in arm.values(measure).items() if key[1] in orders}
    seeds = {seed for seed, _ in values if all((seed, order) in values for order in orders)}
    return {key: value for key, value in values.items() if key[0] in seeds}


def _every_order(shuffles: Shuffles) -> Claim:
    return rule(
        "orders.every", "TRC² has the lowest perplexity AUFC in every order of the tasks",
        where=f"section J; {SHUFFLES}", paper="figure only (ratio best baseline / TRC² above 1 in every shuffle)",
        how="AUFC at the end, TRC² minus each baseline in each order, paired by seed.",
        contrasts=shuffles.in_each(AREA, "AUFC"), missing=shuffles.missing,
    )  # fmt: skip


def _throughout(shuffles: Shuffles) -> Claim:
    contrasts = []
    for ours, rival, orders in shuffles.pairs():
        for order in orders:
            found = never_above(ours, rival, order, f", {' → '.join(order)}")
            contrasts.append(shuffles.cast.told(found, ours, rival, measure=AREA, orders=[order]))
    return rule(
        "orders.throughout", "TRC²'s perplexity AUFC stays lowest throughout the stream in every order",
        where="section J; Figure J.10", paper="figure only (“lowest forgetting band throughout training”)",
        how="The largest AUFC of TRC² minus the baseline's over all evaluations after the first boundary, in each "
        "order, by seed, against 0.",
        contrasts=contrasts, missing=shuffles.missing,
    )  # fmt: skip


def _averaged(shuffles: Shuffles, measures: list[Measure], key: str, statement: str, where: str) -> Claim:
    return rule(
        key, statement, where=where, paper="figure only", how=BY_SEED, missing=shuffles.missing,
        contrasts=[contrast for measure in measures for contrast in shuffles.averaged(measure)],
        notes=[bleu_unit(shuffles.cast)] if BLEU_AREA in measures else [],
    )  # fmt: skip


def _spread(shuffles: Shuffles) -> Claim:
    contrasts, beside = [], []
    for ours, rival, orders in shuffles.pairs():
        about = f"standard deviation of AUFC over {len(orders)} orders"
        sides = [_over_orders(arm, orders) for arm in (ours, rival)]
        a, b = ({seed: known.sd for seed, known in side.items()} for side in sides)
        found = Contrast(about, ours.title, rival.title, a, b, is_one_of=True)
        contrasts.append(shuffles.cast.told(found, ours, rival, measure=AREA, orders=orders))
        a, b = ({seed: known.sd / known.mean for seed, known in side.items() if known.mean} for side in sides)
        beside.append(Contrast(f"{about}, relative to its mean", ours.title, rival.title, a, b))
    return rule(
        "orders.spread", "TRC²'s AUFC varies less with the order of the tasks than the baselines'",
        where=f"section J; {SHUFFLES}", paper="figure only (“much smaller”)",
        how="Standard deviation over orders by seed, TRC² minus each baseline.",
        contrasts=contrasts, beside=beside, missing=shuffles.missing,
        notes=("A model that forgets less in every order also varies less; spread over mean is another question.",),
    )  # fmt: skip


def _boundaries(shuffles: Shuffles) -> Claim:
    measures = [just_learnt("perplexity", task) for task in shuffles.cast.evidence.tasks]
    return rule(
        "orders.boundary", "In every order TRC² has the lowest perplexity of each task right after its training",
        where="section J; Figure J.13", paper="figure only (“comparatively low”)",
        how="Log-perplexity of each task at its own boundary, TRC² minus each baseline in each order, paired by seed.",
        contrasts=[contrast for measure in measures for contrast in shuffles.in_each(measure, measure.title)],
        missing=shuffles.missing,
    )  # fmt: skip


def _over_orders(arm: Arm, orders: list[Order]) -> dict[int, Moments]:
    """AUFC over the orders, by seed."""
    values = _whole(arm, AREA, orders)
    seeds = sorted({seed for seed, _ in values})
    return {seed: moments(value for key, value in values.items() if key[0] == seed) for seed in seeds}
